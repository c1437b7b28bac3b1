"""LangChain models that answer without position bias over the retrieved documents.

Importing this package installs a listener that records the documents of retrievers.
"""

import lazy_loader

from langchain_ragbias.listener import install_listener
from ragbias.frameworks import add_framework

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
add_framework("langgraph", "langgraph_supervisor", "langgraph_swarm", "langchain_huggingface", "langchain_ragbias")
add_framework("langchain", *(f"langchain_{name}" for name in ("classic", "community", "core", "experimental")))
install_listener()
