"""GGUF files are dequantised once, into an atomic copy. Unreadable files cause a one-line error."""

import resource
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import AutoModelForCausalLM

from ragbias import DebiasedLM, Prompt
from ragbias.errors import ArgumentError, MissingExtraError, ModelFileError, UnsupportedModelError
from ragbias.models import gguf
from ragbias.models.loading import load_tokenizer
from support.gguf_files import write_gguf

TEMPLATE = "{{ messages[0].content }}:"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", template=TEMPLATE)


@pytest.fixture(autouse=True)
def copies(tmp_path, monkeypatch):
    monkeypatch.setenv("RAGBIAS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


def only(copies):
    return [path for path in copies.iterdir() if path.name != ".lock"]


def test_model_and_tokenizer_match_the_file_and_then_its_copy(file, copies, monkeypatch):
    lm = DebiasedLM.from_pretrained(str(file.parent), gguf_file=file.name)
    direct = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    ids = torch.tensor([lm.tokenizer("ab cd?").input_ids])
    assert lm.model.dtype == torch.float32
    assert torch.equal(lm.model(ids).logits, direct(ids).logits)
    assert lm.chat_text([{"role": "user", "content": "ab"}]) == "ab:"
    monkeypatch.setitem(sys.modules, "gguf", None)  # not needed any more
    again = DebiasedLM.from_pretrained(str(file))  # the same file by its path
    prompt = Prompt("a\n", ["ab cd", "ef g!"], "b")
    assert again.generate(prompt, max_new_tokens=5).token_ids == lm.generate(prompt, max_new_tokens=5).token_ids
    assert len(only(copies)) == 1
    assert load_tokenizer(str(file), {}).chat_template == TEMPLATE


def test_threads_make_one_copy_and_never_use_a_partial_one(file, copies, monkeypatch):
    made = []
    monkeypatch.setattr(gguf, "_write_model", lambda *args, write=gguf._write_model: (made.append(1), write(*args)))
    copies.mkdir(parents=True)
    name = f"{gguf._digest([file])[:32]}-transformers-"
    begun = copies / f"{name}{gguf.transformers.__version__}.begun"
    begun.mkdir()
    (begun / "config.json").write_text("{")
    with ThreadPoolExecutor(3) as pool:
        folders = set(pool.map(lambda _: gguf.dequantise([file], "small"), range(3)))
    assert made == [1]
    assert only(copies) == list(folders)


@pytest.mark.parametrize("damaged", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_damaged_copy_is_named(file, copies, damaged):
    copy = gguf.dequantise([file], "small")
    (copy / damaged).write_bytes(bytes((copy / damaged).stat().st_size))  # zeros, as a crash of the machine leaves them
    with pytest.raises(ModelFileError, match=rf"small.gguf' cannot be loaded from {copy} \("):
        DebiasedLM.from_pretrained(str(file))


def test_a_file_is_known_by_its_magic_and_a_folder_is_refused(file, tmp_path):
    for name in ("UPPER.GGUF", "no-suffix"):
        shutil.copy(file, tmp_path / name)
        assert load_tokenizer(str(tmp_path / name), {}).chat_template == TEMPLATE
    with pytest.raises(ModelFileError, match="is a folder of GGUF files; name one of them"):
        DebiasedLM.from_pretrained(str(file.parent))
    with pytest.raises(ModelFileError, match="gguf_file=5; expected the name of a file"):
        DebiasedLM.from_pretrained(str(file.parent), gguf_file=5)


def test_a_missing_home_folder_is_reported(file, monkeypatch):
    monkeypatch.setenv("RAGBIAS_CACHE", "~nobody-has-this-name/x")
    with pytest.raises(ModelFileError, match="set the environment variable RAGBIAS_CACHE to another folder"):
        gguf.dequantise([file], "small")


def test_parts_are_joined_and_a_changed_file_gets_a_new_copy(file, copies, tmp_path):
    content = file.read_bytes()
    parts = [tmp_path / "part0", tmp_path / "part1"]
    for part, piece in zip(parts, (content[:5000], content[5000:]), strict=True):
        part.write_bytes(piece)
    folder = gguf.dequantise(parts, "small")
    assert not list(folder.glob("*.gguf"))
    parts[1].write_bytes(content[5000:-1] + bytes([content[-1] ^ 1]))
    assert gguf.dequantise(parts, "small") != folder
    shutil.copy(write_gguf(tmp_path / "other.gguf", template="other"), parts[0])
    assert gguf.dequantise(parts[:1], "small") != folder
    assert len(only(copies)) == 3


@pytest.mark.parametrize("size", [2, 100, 30_000, -10], ids=["magic", "header", "weights", "end"])
def test_a_truncated_file_is_refused_and_leaves_nothing(file, copies, tmp_path, size):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:size])
    with pytest.raises(ModelFileError, match=r"cut\.gguf (is not a GGUF file|cannot be read)") as raised:
        DebiasedLM.from_pretrained(str(cut))
    assert "\n" not in str(raised.value)
    assert only(copies) == []


def test_an_unknown_architecture_or_missing_weights_are_refused(tmp_path):
    with pytest.raises(UnsupportedModelError, match="architecture unheard is not supported yet. Use a GGUF file of"):
        DebiasedLM.from_pretrained(str(write_gguf(tmp_path / "odd.gguf", architecture="unheard")))
    with pytest.raises(UnsupportedModelError, match="T5Config.* Use a GGUF file of another"):
        DebiasedLM.from_pretrained(str(write_gguf(tmp_path / "t5.gguf", architecture="t5")))
    with pytest.raises(ModelFileError, match=r"lacks \d+ weights, such as model.layers.1"):
        DebiasedLM.from_pretrained(str(write_gguf(tmp_path / "less.gguf", without="blk.1.ffn_up.weight")))


def test_a_missing_package_and_a_missing_file_are_named(file, tmp_path, monkeypatch):
    with pytest.raises(ModelFileError, match="no such file"):
        DebiasedLM.from_pretrained(str(tmp_path / "none.gguf"))
    with pytest.raises(ModelFileError, match=r"its file 'none\.gguf' cannot be found: no such file in the folder"):
        DebiasedLM.from_pretrained(str(tmp_path), gguf_file="none.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'ragbias\[gguf\]'"):
        DebiasedLM.from_pretrained(str(file))


def test_no_space_for_the_copy_names_the_folder_and_a_remedy(file, copies, monkeypatch):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(ModelFileError, match=r"cannot be written to .*cache/gguf.*RAGBIAS_CACHE"):
            DebiasedLM.from_pretrained(str(file))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert only(copies) == []
    monkeypatch.setenv("RAGBIAS_CACHE", str(file))  # no folder can be made there
    with pytest.raises(ModelFileError, match="RAGBIAS_CACHE"):
        DebiasedLM.from_pretrained(str(file))


def test_a_model_without_chat_template_says_what_to_do(tmp_path):
    lm = DebiasedLM.from_pretrained(str(write_gguf(tmp_path / "base.gguf")))
    with pytest.raises(ArgumentError, match="has no chat template; pass a flat prompt"):
        lm.chat_text([{"role": "user", "content": "ab"}])
