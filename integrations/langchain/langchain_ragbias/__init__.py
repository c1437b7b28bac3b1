"""LangChain models that answer without position bias over the retrieved documents.

Importing this package installs a listener that records the documents of retrievers.
"""

from langchain_ragbias.chat_models import ChatRagBias
from langchain_ragbias.listener import install_listener, uninstall_listener
from langchain_ragbias.llms import RagBiasPipeline
from langchain_ragbias.warming import warm
from ragbias.errors import MissingDocumentsWarning
from ragbias.frameworks import RagBiasOptions, add_framework

add_framework("langgraph", "langgraph_supervisor", "langgraph_swarm", "langchain_huggingface", "langchain_ragbias")
add_framework("langchain", *(f"langchain_{name}" for name in ("classic", "community", "core", "experimental")))
install_listener()

__all__ = [
    "ChatRagBias", "MissingDocumentsWarning", "RagBiasOptions", "RagBiasPipeline", "install_listener",
    "uninstall_listener", "warm",
]  # fmt: skip
