"""An OpenAI-compatible server and proxy.

``app`` is the server: OpenAI's routes over an engine. ``engine`` contains the engine for models of any kind.
``local_engine`` runs models in this process, and ``ray_serve`` on replicas of a Ray cluster. ``proxy`` reorders the
documents in requests and forwards them to another server. Server and proxy extend ``server.base_app``, and ``run``
starts either of them with uvicorn.
"""
