"""A local model for LlamaIndex whose answers do not depend on the order of the retrieved documents.

Importing this package attaches a passive listener to the nodes that LlamaIndex retrieves.
"""

from llama_index.llms.ragbias.arguments import RagBiasLLMOptions
from llama_index.llms.ragbias.base import RagBiasLLM
from llama_index.llms.ragbias.listener import install_listener, uninstall_listener
from llama_index.llms.ragbias.warming import WarmDocuments, warm

from ragbias.adapters.missing_documents import MissingDocumentsWarning

install_listener()

__all__ = [
    "MissingDocumentsWarning",
    "RagBiasLLM",
    "RagBiasLLMOptions",
    "WarmDocuments",
    "install_listener",
    "uninstall_listener",
    "warm",
]
