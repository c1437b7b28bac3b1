"""Loading models by name (``loading``); the embedded model ``tiny`` needs no hub."""

from ragbias.models import tiny

__all__ = ["local_path"]

_LOCAL = {"tiny": tiny.path}


def local_path(name: str) -> str:
    """Where ``from_pretrained`` finds the model of this name: its folder if the name stands for one, else the name."""
    return str(_LOCAL[name]()) if name in _LOCAL else name
