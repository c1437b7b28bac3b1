"""An OpenAI-compatible server and proxy.

``app`` is the server: OpenAI's routes over an engine. ``engine`` contains the engine for models of any kind.
``local_engine`` runs models in this process. ``ray_serve`` runs them on replicas of a Ray cluster. ``proxy`` reorders
the documents in requests, and forwards the requests to another server. Server and proxy extend ``server.base_app``, and
``run`` starts either of them with uvicorn.

Engines of other distributions, such as ``ragbias_vllm``, subclass ``ServedModel``, and use only the names that this
package exports.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
