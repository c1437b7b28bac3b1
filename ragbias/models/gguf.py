"""Dequantise a GGUF file to float32 once, and cache the copy. ``from_pretrained`` loads the copy.

The copies are in ``RAGBIAS_CACHE`` or in the platform's cache folder, and take four bytes per weight. The name of a
copy contains the digest of the GGUF file and the version of transformers. Copies can be deleted at any time.
"""

from __future__ import annotations

import hashlib
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
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.hub import cached_file

from ragbias.errors import MissingExtraError, ModelFileError, UnsupportedModelError, first_line
from ragbias.extras import install_command
from ragbias.files import digest_of_file, sync, sync_folder

MAGIC = b"GGUF"
SUFFIX = ".gguf"
NEEDED = ("gguf", "accelerate")  # packages that transformers needs to read GGUF files


def is_gguf(name: str) -> bool:
    """Whether a model name ends with ``.gguf``, or is the path of a file that begins with GGUF's magic number."""
    return name.lower().endswith(SUFFIX) or (Path(name).is_file() and _begins_as_gguf(Path(name)))


def _begins_as_gguf(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(MAGIC)) == MAGIC


def find_gguf_file(name: str, gguf_file: str | None = None, **hub: Any) -> Path:
    """Return the path of a GGUF file in the folder or hub repository ``name``. Download the file if necessary.

    Without ``gguf_file``, ``name`` is the path of the file, or ``owner/repo/file.gguf``.
    """
    if gguf_file is not None and (not isinstance(gguf_file, str) or not gguf_file):
        raise ModelFileError(f"model {name!r}: gguf_file={gguf_file!r}; expected the name of a file")
    if gguf_file is None:
        path, pieces = Path(name), name.split("/")
        if path.is_file():
            return path
        if path.is_absolute() or len(pieces) < 3:
            raise ModelFileError(f"model {name!r}: no such file; expected the path of a GGUF file")
        name, gguf_file = "/".join(pieces[:2]), "/".join(pieces[2:])
    if Path(name).is_dir() and not Path(name, gguf_file).is_file():
        raise ModelFileError(f"model {name!r}: its file {gguf_file!r} cannot be found: no such file in the folder")
    try:
        return Path(str(cached_file(name, gguf_file, **hub)))
    except (OSError, ValueError) as error:
        reason = first_line(error)
        raise ModelFileError(f"model {name!r}: its file {gguf_file!r} cannot be found: {reason}") from error


def dequantise(parts: Sequence[Path], name: str) -> Path:
    """Return the folder with the dequantised copy of a GGUF model. Create the copy on first use.

    ``parts`` are the parts of the GGUF file in order, usually one. ``name`` is the name of the model in errors.
    """
    copies = cache_folder(name) / "gguf"
    copy = copies / f"{_digest(parts)[:32]}-transformers-{transformers.__version__}"
    try:
        if copy.is_dir():
            return copy
        for package in NEEDED:
            if find_spec(package) is None:
                raise MissingExtraError(
                    f"model {name!r} is a GGUF file and needs {package}; install it with: {install_command('gguf')}"
                )
        copies.mkdir(parents=True, exist_ok=True)
        with FileLock(copies / ".lock"):  # one process writes while others wait
            if not copy.is_dir():
                _create_copy(parts, name, copy)
    except (OSError, SafetensorError, UnicodeEncodeError) as error:
        raise ModelFileError(_cannot_write(name, copies, str(error))) from error
    return copy


def cache_folder(name: str) -> Path:
    """Return the folder for caches: ``RAGBIAS_CACHE``, or ``ragbias`` in the cache folder of the platform."""
    if chosen := os.environ.get("RAGBIAS_CACHE"):
        try:
            return Path(chosen).expanduser().absolute()
        except RuntimeError as error:
            raise ModelFileError(_cannot_write(name, Path(chosen), str(error))) from error
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "ragbias"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "ragbias"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ragbias"


def _digest(parts: Sequence[Path]) -> str:
    digests = (_digest_of(part, part.stat().st_size, part.stat().st_mtime_ns) for part in parts)
    return hashlib.sha256(b"".join(digests)).hexdigest()


@cache
def _digest_of(file: Path, size: int, changed: int) -> bytes:
    """Return the SHA-256 digest of a file. The result is cached until its size or modification time changes."""
    return digest_of_file(file)


def _create_copy(parts: Sequence[Path], name: str, copy: Path) -> None:
    temporary = copy.with_name(f"{copy.name}.begun")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process
    temporary.mkdir()
    try:
        file = parts[0]
        if len(parts) > 1:
            file = temporary / "parts.gguf"
            with file.open("wb") as whole:
                for part in parts:
                    with part.open("rb") as source:
                        shutil.copyfileobj(source, whole)
        _write_model(file, name, temporary)
        if len(parts) > 1:
            file.unlink()
        for written in temporary.iterdir():
            sync(written)
        os.rename(temporary, copy)
        sync_folder(copy.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_model(file: Path, name: str, folder: Path) -> None:
    source = str(file.parent)
    settings: dict[str, Any] = {"gguf_file": file.name}
    gguf_config = getattr(transformers, "GgufConfig", None)
    if gguf_config is not None:  # newer versions dequantise on request
        settings["quantization_config"] = gguf_config(dequantize=True)
    with _gguf_errors(file, name):
        found: Any = AutoModelForCausalLM.from_pretrained(  # loaded first, because it reports unknown architectures
            source, **settings, dtype=torch.float32, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file.name)
    packed, loaded = found
    if missing := sorted(loaded["missing_keys"]):  # transformers initialises them randomly
        raise ModelFileError(
            f"model {name!r}: {file} lacks {len(missing)} weights, such as {missing[0]}; use another file"
        )
    if hasattr(packed.config, "quantization_config"):  # transformers refuses to save such a model
        del packed.config.quantization_config
    model = type(packed).from_pretrained(
        None, config=packed.config, state_dict=packed.state_dict(), dtype=torch.float32
    )
    model.generation_config = packed.generation_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextmanager
def _gguf_errors(file: Path, name: str) -> Iterator[None]:
    """Convert errors that transformers raises for a GGUF file to errors of one line."""
    if not _begins_as_gguf(file):
        raise ModelFileError(f"model {name!r}: {file} is not a GGUF file; expected a file that begins with 'GGUF'")
    try:
        yield
    except Exception as error:  # damaged files raise errors of any class
        reason = first_line(error)
        if "architecture" in reason or "configuration class" in reason:  # encoder-decoders lack the class
            raise UnsupportedModelError(
                f"model {name!r}: {reason.rstrip('.')}. Use a GGUF file of another architecture or the original weights"
            ) from error
        raise ModelFileError(
            f"model {name!r}: {file} cannot be read ({type(error).__name__}: {reason}); it may be truncated: "
            "download it again"
        ) from error


def _cannot_write(name: str, folder: Path, why: str) -> str:
    return (
        f"model {name!r}: its dequantised copy cannot be written to {folder} ({why}); free space there, or set the "
        "environment variable RAGBIAS_CACHE to another folder"
    )
