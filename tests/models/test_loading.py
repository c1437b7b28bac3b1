"""Loading runs no remote code and unpickles nothing by default. Errors name the option that allows it."""

import json
import re
from types import SimpleNamespace

import pytest
import torch

from ragbias import DebiasedLM
from ragbias.errors import ArgumentError, ModelFileError, RagBiasError, UnknownMethodError, WrongTypeError
from ragbias.models import loading
from ragbias.models.loading import torch_device
from ragbias.models.named import EXPECTED


@pytest.fixture
def folder(tmp_path):
    lm = DebiasedLM.from_pretrained("tiny")
    lm.model.save_pretrained(tmp_path)
    lm.tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_code_that_comes_with_a_model_needs_the_option(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on the terminal"))
    ran = tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ArgumentError, match="in Python with trust_remote_code=True"):
        DebiasedLM.from_pretrained(str(folder))
    assert not ran.exists()


def test_pickled_weights_need_the_option(folder):
    lm = DebiasedLM.from_pretrained(str(folder))
    (folder / "model.safetensors").unlink()
    torch.save(lm.model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ArgumentError, match="in Python with use_safetensors=False"):
        DebiasedLM.from_pretrained(str(folder))
    unpickled = DebiasedLM.from_pretrained(str(folder), use_safetensors=False)
    assert torch.equal(unpickled.model.lm_head.weight, lm.model.lm_head.weight)


def test_an_unknown_method_is_refused_before_weights_are_read(tmp_path):
    with pytest.raises(UnknownMethodError, match="did you mean 'pine'"):
        DebiasedLM.from_pretrained(str(tmp_path), method="pin")


@pytest.mark.parametrize("wrong", ["x", 5, ["a"]], ids=str)
def test_arguments_of_the_tokenizer_are_a_dict(wrong):
    with pytest.raises(WrongTypeError, match=f"tokenizer_kwargs={re.escape(repr(wrong))}; expected a dict"):
        DebiasedLM.from_pretrained("tiny", tokenizer_kwargs=wrong)


def test_device_and_dtype_are_understood_and_a_name_is_no_model():
    assert DebiasedLM.from_pretrained("tiny", device=-1, dtype="bfloat16").model.dtype == torch.bfloat16
    for device in ("gpu", 77, 10**5000, "hpu", object()):
        with pytest.raises(ArgumentError, match="device=.*; expected "):
            DebiasedLM.from_pretrained("tiny", device=device)
    for dtype in ("float99", "Linear", "int8", torch.int8, 7):
        with pytest.raises(ArgumentError, match=f"^dtype={dtype!r}; expected 'auto', 'float32'"):
            DebiasedLM.from_pretrained("tiny", dtype=dtype)
        with pytest.raises(ArgumentError, match=f"^dtype={dtype!r}; expected 'auto', 'float32'"):
            DebiasedLM.from_pretrained("tiny", torch_dtype=dtype)
    with pytest.raises(ArgumentError, match="give one of them"):
        DebiasedLM.from_pretrained("tiny", device="cpu", device_map="auto")
    with pytest.raises(WrongTypeError, match="from_pretrained"):
        DebiasedLM("tiny", None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device exists")
def test_a_device_that_is_missing_is_refused():
    for name in ("device", "device_map"):
        with pytest.raises(
            ArgumentError, match=rf"^{name}='cuda:7' cannot be used here \(.*CUDA.*\); expected a torch dev"
        ):
            DebiasedLM.from_pretrained("tiny", **{name: "cuda:7"})


@pytest.mark.parametrize("name", ["/nonexistent", "a/b/c", "foo bar", "a" * 97])
def test_a_name_that_no_model_has_is_refused(name):
    with pytest.raises(ModelFileError) as refused:
        DebiasedLM.from_pretrained(name)
    assert str(refused.value) == f"model {name!r} is no folder, file or hub name; expected {EXPECTED}"


def test_a_model_that_fails_to_load_is_not_suggested():
    with pytest.raises(ModelFileError, match=r"cannot be loaded from .*tiny \(.*\); expected"):
        DebiasedLM.from_pretrained("tiny", attn_implementation="fast")


def test_wrong_arguments_of_a_model_are_named(lm):
    with pytest.raises(WrongTypeError, match="model=None; expected a transformers model"):
        DebiasedLM(None, None)
    with pytest.raises(WrongTypeError, match="tokenizer=None; expected the model's transformers tokenizer"):
        DebiasedLM(lm.model, None)
    with pytest.raises(WrongTypeError, match="name=5; expected 'tiny', "):
        DebiasedLM.from_pretrained(5)
    with pytest.raises(ArgumentError, match="model 'tiny' takes no argument 'foo'"):
        DebiasedLM.from_pretrained("tiny", foo=1)


def test_a_misspelt_model_fails_at_once_where_the_hub_is_away(monkeypatch):
    requests = []

    def away(url, timeout):
        requests.append(url)
        raise RuntimeError("no network")

    monkeypatch.setattr(loading, "get_session", lambda: SimpleNamespace(head=away))
    with pytest.raises(ModelFileError, match=r"cannot be reached: no network\); did you mean 'smollm2'\?"):
        DebiasedLM.from_pretrained("smolm2")
    assert requests == ["https://huggingface.co/smolm2/resolve/main/config.json"]


def test_no_model_shows_how_to_name_one():
    with pytest.raises(ArgumentError, match=r"e.g. DebiasedLM.from_pretrained\('smollm2'\); expected 'tiny'"):
        DebiasedLM.from_pretrained()


def test_a_model_that_fails_to_load_names_the_nearest_name(monkeypatch, tmp_path):
    def missing(*_, **__):
        raise OSError("no such repository\nand more")

    monkeypatch.setattr(loading, "get_session", lambda: SimpleNamespace(head=lambda *_, **__: None))
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", missing)
    with pytest.raises(ModelFileError) as refused:
        DebiasedLM.from_pretrained("smolm2")
    assert str(refused.value) == (
        f"model 'smolm2' cannot be loaded (OSError: no such repository); did you mean 'smollm2'? expected {EXPECTED}, "
        "with complete files of weights, config and tokenizer"
    )
    with pytest.raises(ModelFileError, match="is not a folder with a config.json; expected 'tiny'"):
        DebiasedLM.from_pretrained(str(tmp_path))


def test_a_damaged_model_is_named(folder):
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(ModelFileError, match=f"model '{folder}' cannot be loaded"):
        DebiasedLM.from_pretrained(str(folder))


def test_running_out_of_memory_is_no_damaged_file(monkeypatch):
    def full(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", full)
    with pytest.raises(RuntimeError, match="can't allocate memory") as raised:
        DebiasedLM.from_pretrained("tiny")
    assert not isinstance(raised.value, RagBiasError)


def test_device_auto_is_the_gpu_if_there_is_one(monkeypatch):
    for found, expected in ((True, torch.device("cuda")), (False, None)):
        monkeypatch.setattr("torch.cuda.is_available", lambda found=found: found)
        assert torch_device("auto") == expected
