"""GGUF files: dequantised to float32 once, and kept as a folder that ``from_pretrained`` reads in seconds.

The copies are in ``RAGBIAS_CACHE``, or in the platform's folder for caches; each takes four bytes for a weight. They
are named by the file's content and transformers' version, and may be removed at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from filelock import FileLock
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils.hub import cached_file

from ragbias.errors import MissingExtraError, ModelFileError, UnsupportedModelError, first_line
from ragbias.files import irregular, sync, sync_folder

MAGIC = b"GGUF"
SUFFIX = ".gguf"
MANIFEST = "files.json"  # of a copy: the size of each of its files
NEEDED = ("gguf", "accelerate")  # by transformers, to read one
MIB = 2**20


def is_gguf(name: str) -> bool:
    """Whether a model's name is that of a GGUF file, or a file on disk that begins like one."""
    return name.lower().endswith(SUFFIX) or (Path(name).is_file() and _begins_as_gguf(Path(name)))


def _begins_as_gguf(file: Path) -> bool:
    if irregular(file):  # reading from a pipe or a device need not end
        return False
    with file.open("rb") as opened:
        return opened.read(len(MAGIC)) == MAGIC


def find_gguf_file(name: str, gguf_file: str | None = None, **hub: Any) -> Path:
    """The GGUF file on disk, from the hub if need be.

    Args:
        name: a folder, or a repository of the hub; without ``gguf_file`` the file's path, or ``owner/repo/file.gguf``.
        gguf_file: its name in the folder or repository.
        hub: for the hub: ``revision``, ``token``, ``cache_dir`` and so on.

    Raises:
        ModelFileError: there is no such file.
    """
    if gguf_file is not None and (not isinstance(gguf_file, str) or not gguf_file):
        raise ModelFileError(f"model {name!r}: gguf_file={gguf_file!r}; expected the name of a file in it")
    if gguf_file is None:
        path, pieces = Path(name), name.split("/")
        if path.is_file():
            return path
        if path.is_absolute() or len(pieces) < 3:
            raise ModelFileError(f"model {name!r}: there is no such file; expected the path of a GGUF file")
        name, gguf_file = "/".join(pieces[:2]), "/".join(pieces[2:])
    if Path(name).is_dir() and not Path(name, gguf_file).is_file():
        raise ModelFileError(f"model {name!r}: its file {gguf_file!r} is not to be had: the folder has none such")
    try:
        return Path(str(cached_file(name, gguf_file, **hub)))
    except (OSError, ValueError) as error:
        reason = first_line(error)
        raise ModelFileError(f"model {name!r}: its file {gguf_file!r} is not to be had: {reason}") from error


def dequantised(parts: Sequence[Path], name: str) -> Path:
    """The folder with model, config and tokenizer of a GGUF file, dequantised now unless that was done before.

    Args:
        parts: the files that it is made of, in order; mostly one.
        name: the model's, for errors.

    Raises:
        MissingExtraError: it was not dequantised before, and a package that reads GGUF files is not installed.
        ModelFileError: it is no whole GGUF file, or there is no space for its copy.
        UnsupportedModelError: transformers reads no GGUF file of this architecture.
    """
    copies = cache_folder(name) / "gguf"
    copy = copies / f"{_digest(parts)[:32]}-transformers-{transformers.__version__}"
    with _write_errors(name, copies):
        if _is_whole(copy):
            return copy
    for package in NEEDED:
        if find_spec(package) is None:
            raise MissingExtraError(
                f"model {name!r} is a GGUF file, and {package}, which reads such files, is not installed; install it "
                "with: pip install 'ragbias[gguf]'"
            )
    with _write_errors(name, copies):
        copies.mkdir(parents=True, exist_ok=True)
        with FileLock(copies / ".lock"):  # one process writes, others wait
            if not _is_whole(copy):
                shutil.rmtree(copy, ignore_errors=True)
                _make(parts, name, copy)
    return copy


def _is_whole(copy: Path) -> bool:
    """Whether all files of a copy are there, as large as they were; whoever clears a cache may take some of them."""
    try:
        sizes: dict[str, int] = json.loads((copy / MANIFEST).read_text())
        return all((copy / file).stat().st_size == size for file, size in sizes.items())
    except (FileNotFoundError, ValueError, AttributeError):  # the last of JSON that is no object
        return False


def cache_folder(name: str) -> Path:
    """The folder for what can be made again: ``RAGBIAS_CACHE``, or ``ragbias`` in the platform's folder for caches.

    Raises:
        ModelFileError: there is no such home folder.
    """
    if chosen := os.environ.get("RAGBIAS_CACHE"):
        try:
            return Path(chosen).expanduser().absolute()
        except RuntimeError as error:
            raise ModelFileError(_no_space(name, Path(chosen), str(error))) from error
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "ragbias"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "ragbias"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ragbias"


def _digest(parts: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        about = part.stat()
        digest.update(_digest_of(part, about.st_size, about.st_mtime_ns))
    return digest.hexdigest()


@cache
def _digest_of(file: Path, size: int, changed: int) -> bytes:
    """The digest of its content, read again where its size or time has changed."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(MIB):
            digest.update(block)
    return digest.digest()


def _make(parts: Sequence[Path], name: str, copy: Path) -> None:
    """Write the copy beside its place, and move it there as a whole."""
    begun = copy.with_name(f"{copy.name}.begun")
    shutil.rmtree(begun, ignore_errors=True)  # of a process that was killed
    begun.mkdir()
    try:
        with _joined_parts(parts, begun) as file:
            _write(file, name, begun)
        sizes = {written.name: written.stat().st_size for written in begun.iterdir()}
        (begun / MANIFEST).write_text(json.dumps(sizes))
        for written in begun.iterdir():
            sync(written)
        os.rename(begun, copy)
        sync_folder(copy.parent)
    finally:
        shutil.rmtree(begun, ignore_errors=True)


@contextmanager
def _joined_parts(parts: Sequence[Path], folder: Path) -> Iterator[Path]:
    """One file of all parts, there as long as it is read."""
    if len(parts) == 1:
        yield parts[0]
        return
    whole = folder / "parts.gguf"
    try:
        with whole.open("wb") as file:
            for part in parts:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, file, MIB)
        yield whole
    finally:
        whole.unlink(missing_ok=True)


def _write(file: Path, name: str, folder: Path) -> None:
    source, settings = str(file.parent), {"gguf_file": file.name}
    with _readable(file, name):
        tokenizer = AutoTokenizer.from_pretrained(source, **settings)
        found: Any = AutoModelForCausalLM.from_pretrained(
            source, **settings, **_unpacked(), dtype=torch.float32, output_loading_info=True
        )
    packed, loaded = found
    if missing := sorted(loaded["missing_keys"]):  # transformers makes them up
        raise ModelFileError(f"model {name!r}: {file} lacks weights, {missing[0]} among {len(missing)}; get another")
    model = _plain(packed)
    needed = sum(weight.nbytes for weight in model.state_dict().values())
    if (free := shutil.disk_usage(folder).free) < needed:
        raise ModelFileError(_no_space(name, folder.parent, f"{needed // MIB} MiB are needed, {free // MIB} are free"))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _unpacked() -> dict[str, Any]:
    """What keeps transformers from leaving the weights in their blocks, where it can do that."""
    config = getattr(transformers, "GgufConfig", None)
    return {} if config is None else {"quantization_config": config(dequantize=True)}


def _plain(packed: PreTrainedModel) -> PreTrainedModel:
    """The same weights in a model that does not remember their file, so that it can be saved."""
    config, weights = packed.config, packed.state_dict()
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model: PreTrainedModel = type(packed).from_pretrained(None, config=config, state_dict=weights, dtype=torch.float32)
    model.generation_config = packed.generation_config
    return model


@contextmanager
def _readable(file: Path, name: str) -> Iterator[None]:
    """Say in one line why a file cannot be read as a model."""
    if not _begins_as_gguf(file):
        raise ModelFileError(f"model {name!r}: {file} is no GGUF file; expected one that begins with 'GGUF'")
    try:
        yield
    except Exception as error:  # a damaged file raises whatever its reader does
        reason = first_line(error)
        if "architecture" in reason or "configuration class" in reason:  # the latter of what is no decoder
            raise UnsupportedModelError(
                f"model {name!r}: {reason.rstrip('.')}. Take a GGUF file of another architecture, or the model's own "
                "weights"
            ) from error
        if "ignore_mismatched_sizes" in reason:
            raise ModelFileError(
                f"model {name!r}: the weights in {file} have other shapes than its architecture; get another file"
            ) from error
        raise ModelFileError(
            f"model {name!r}: {file} cannot be read ({type(error).__name__}: {reason}); it may be truncated: get the "
            "whole file again"
        ) from error


@contextmanager
def _write_errors(name: str, folder: Path) -> Iterator[None]:
    """Say in one line that the copy cannot be written."""
    try:
        yield
    except (OSError, SafetensorError, UnicodeEncodeError) as error:
        raise ModelFileError(_no_space(name, folder, str(error))) from error


def _no_space(name: str, folder: Path, why: str) -> str:
    return (
        f"model {name!r}: its dequantised copy cannot be written to {folder} ({why}); make room there, or name another "
        "folder in the environment variable RAGBIAS_CACHE"
    )
