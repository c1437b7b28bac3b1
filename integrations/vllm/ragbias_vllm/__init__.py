"""A KV connector for vLLM that computes each document once and reuses it in other prompts.

vLLM imports ``RagBiasConnector`` from this module. The rest of the package can be imported without vLLM.
"""

from typing import Any

__all__ = ["RagBiasConnector"]


def __getattr__(name: str) -> Any:
    if name != "RagBiasConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ragbias_vllm.connector import RagBiasConnector

    return RagBiasConnector
