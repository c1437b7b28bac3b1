"""A KV connector for vLLM that computes each document once and reuses it in other prompts.

vLLM imports ``RagBiasConnector`` from this module. The rest of the package can be imported without vLLM.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
