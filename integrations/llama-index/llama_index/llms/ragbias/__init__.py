"""Local models for LlamaIndex that answer without position bias over the retrieved nodes.

Importing this package installs a listener that records retrieved nodes.
"""

import lazy_loader
from llama_index.llms.ragbias.listener import install_listener

from ragbias.frameworks import add_framework

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
add_framework("llama_index", "llama_index_instrumentation", "workflows")
install_listener()
