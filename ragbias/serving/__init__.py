"""An OpenAI-compatible server and proxy.

``app`` is the server: OpenAI's routes over an engine. ``local_engine`` runs models in this process. ``ray_serve`` runs
them on replicas of a Ray cluster. ``proxy`` reorders the documents in requests and forwards them to another server.
Server and proxy extend ``server.base_app``, and ``run`` starts either of them with uvicorn.
"""
