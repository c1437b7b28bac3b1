"""A model behind a server of ``ragbias serve``, in the place of one that is loaded here."""

from ragbias.adapters.remote.answer import RemoteGeneration as RemoteGeneration
from ragbias.adapters.remote.remote_lm import BESIDE_MODEL as BESIDE_MODEL
from ragbias.adapters.remote.remote_lm import RemoteLM as RemoteLM
from ragbias.adapters.remote.request import RemoteFormat as RemoteFormat
