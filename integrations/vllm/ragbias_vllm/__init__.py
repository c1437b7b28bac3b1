"""A KV connector with which vLLM computes each document once and reuses it in other prompts.

vLLM imports this module for ``RagBiasConnector``. Other environments need no vLLM to import the rest.
"""

from typing import Any

__all__ = ["RagBiasConnector"]


def __getattr__(name: str) -> Any:
    if name != "RagBiasConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ragbias_vllm.connector import RagBiasConnector

    return RagBiasConnector
