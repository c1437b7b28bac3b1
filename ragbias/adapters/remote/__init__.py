"""A model behind a server of ``ragbias serve``, used like a local one."""

from ragbias.adapters.remote.remote_lm import RemoteLM as RemoteLM
from ragbias.adapters.remote.remote_lm import chat_logprobs as chat_logprobs
