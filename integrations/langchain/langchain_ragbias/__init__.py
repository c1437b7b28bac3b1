"""LangChain models that answer without position bias over the retrieved documents.

Importing this package installs a listener that records the documents of retrievers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from langchain_ragbias.listener import install_listener, uninstall_listener
from ragbias.frameworks import add_framework

if TYPE_CHECKING:
    from langchain_ragbias.chat_models import ChatRagBias
    from langchain_ragbias.llms import RagBiasPipeline
    from langchain_ragbias.warming import warm
    from ragbias.errors import MissingDocumentsWarning
    from ragbias.frameworks import RagBiasOptions

_MODULES = {
    "ChatRagBias": "langchain_ragbias.chat_models",
    "MissingDocumentsWarning": "ragbias.errors",
    "RagBiasOptions": "ragbias.frameworks",
    "RagBiasPipeline": "langchain_ragbias.llms",
    "warm": "langchain_ragbias.warming",
}

add_framework("langgraph", "langgraph_supervisor", "langgraph_swarm", "langchain_huggingface", "langchain_ragbias")
add_framework("langchain", *(f"langchain_{name}" for name in ("classic", "community", "core", "experimental")))
install_listener()

__all__ = [
    "ChatRagBias", "MissingDocumentsWarning", "RagBiasOptions", "RagBiasPipeline", "install_listener",
    "uninstall_listener", "warm",
]  # fmt: skip


if not TYPE_CHECKING:  # so that type checkers report unknown names

    def __getattr__(name: str) -> Any:  # torch and transformers are imported on first use
        if name in _MODULES:
            return getattr(import_module(_MODULES[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
