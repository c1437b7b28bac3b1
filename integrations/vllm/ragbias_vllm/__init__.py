"""Documents computed once, inside vLLM, for methods of ragbias: a KV connector.

vLLM imports this module for ``RagBiasConnector``. Other environments need no vLLM to import the rest.
"""

from typing import Any

__all__ = ["RagBiasConnector"]


def __getattr__(name: str) -> Any:
    if name != "RagBiasConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ragbias_vllm.connector import RagBiasConnector

    return RagBiasConnector
