"""An OpenAI-compatible server and proxy.

``app`` provides OpenAI's routes with an engine: ``local_engine`` runs models in this process, and ``ray_serve`` on the
replicas of a Ray cluster. ``proxy`` arranges the documents of requests, and forwards the requests to another server.
Both applications extend ``server.base_app``. ``run`` runs them with uvicorn.
"""
