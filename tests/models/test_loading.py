"""Loading runs no code and unpickles nothing that was not asked for, and names what would allow it."""

import json

import pytest
import torch

from ragbias import DebiasedLM
from ragbias.errors import ArgumentError, UnknownMethodError, WrongTypeError


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


def test_an_unknown_method_is_told_before_the_weights_are_read(tmp_path):
    with pytest.raises(UnknownMethodError, match="did you mean 'pine'"):
        DebiasedLM.from_pretrained(str(tmp_path), method="pin")


def test_device_and_dtype_are_understood_and_a_name_is_no_model():
    assert DebiasedLM.from_pretrained("tiny", device=-1, dtype="bfloat16").model.dtype == torch.bfloat16
    for device in ("gpu", 77):
        with pytest.raises(ArgumentError, match="device="):
            DebiasedLM.from_pretrained("tiny", device=device)
    with pytest.raises(ArgumentError, match="give one of them"):
        DebiasedLM.from_pretrained("tiny", device="cpu", device_map="auto")
    with pytest.raises(WrongTypeError, match="from_pretrained"):
        DebiasedLM("tiny", None)
