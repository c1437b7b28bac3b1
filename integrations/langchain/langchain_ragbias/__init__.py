"""LangChain models that answer without position bias over the retrieved documents.

Importing this package installs the passive listener that notes what retrievers return.
"""

from langchain_ragbias.chat_models import ChatRagBias
from langchain_ragbias.listener import install_listener, uninstall_listener
from langchain_ragbias.llms import RagBiasPipeline
from langchain_ragbias.warming import warm
from ragbias.adapters.missing_documents import MissingDocumentsWarning

install_listener()

__all__ = [
    "ChatRagBias",
    "MissingDocumentsWarning",
    "RagBiasPipeline",
    "install_listener",
    "uninstall_listener",
    "warm",
]
