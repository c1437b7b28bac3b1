"""A model behind a server of ``ragbias serve``, in the place of one that is loaded here."""

from ragbias.adapters.remote.remote_lm import BESIDE_MODEL, RemoteFormat, RemoteGeneration, RemoteLM

__all__ = ["BESIDE_MODEL", "RemoteFormat", "RemoteGeneration", "RemoteLM"]
