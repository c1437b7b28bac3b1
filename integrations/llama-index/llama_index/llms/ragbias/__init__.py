"""A local model for LlamaIndex whose answers do not depend on where in the prompt the right document is.

Importing this package attaches the listener that sees which nodes LlamaIndex retrieves.
"""

from llama_index.llms.ragbias.base import RagBiasLLM
from llama_index.llms.ragbias.listener import install_listener, uninstall_listener
from llama_index.llms.ragbias.warming import WarmDocuments, warm

from ragbias.adapters.missing_documents import MissingDocumentsWarning

install_listener()

__all__ = [
    "MissingDocumentsWarning",
    "RagBiasLLM",
    "WarmDocuments",
    "install_listener",
    "uninstall_listener",
    "warm",
]
