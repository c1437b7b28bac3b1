"""Local models for LlamaIndex that answer without position bias over the retrieved nodes.

Importing this package installs a listener that records retrieved nodes.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from llama_index.llms.ragbias.listener import install_listener, uninstall_listener

from ragbias.frameworks import add_framework

if TYPE_CHECKING:
    from llama_index.llms.ragbias.arguments import RagBiasLLMOptions
    from llama_index.llms.ragbias.base import RagBiasLLM
    from llama_index.llms.ragbias.judge import PairwiseJudge
    from llama_index.llms.ragbias.warming import WarmDocuments, warm

    from ragbias.errors import MissingDocumentsWarning

_MODULES = {
    "MissingDocumentsWarning": "ragbias.errors",
    "PairwiseJudge": "llama_index.llms.ragbias.judge",
    "RagBiasLLM": "llama_index.llms.ragbias.base",
    "RagBiasLLMOptions": "llama_index.llms.ragbias.arguments",
    "WarmDocuments": "llama_index.llms.ragbias.warming",
    "warm": "llama_index.llms.ragbias.warming",
}

add_framework("llama_index", "llama_index_instrumentation", "workflows")
install_listener()

__all__ = [
    "MissingDocumentsWarning",
    "PairwiseJudge",
    "RagBiasLLM",
    "RagBiasLLMOptions",
    "WarmDocuments",
    "install_listener",
    "uninstall_listener",
    "warm",
]


if not TYPE_CHECKING:  # so that type checkers report unknown names

    def __getattr__(name: str) -> Any:  # torch and transformers are imported on first use
        if name in _MODULES:
            return getattr(import_module(_MODULES[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
