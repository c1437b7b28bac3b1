"""A model behind a server of ``ragbias serve``, in the place of one that is loaded here."""

from ragbias.adapters.remote.remote_lm import RemoteFormat, RemoteGeneration, RemoteLM

__all__ = ["RemoteFormat", "RemoteGeneration", "RemoteLM"]
