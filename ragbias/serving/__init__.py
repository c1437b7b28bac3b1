"""An OpenAI-compatible server and proxy.

``app`` answers OpenAI's routes with an engine: ``local_engine`` runs models in this process, ``ray_serve`` runs them on
the replicas of a Ray cluster. ``proxy`` arranges the documents of requests and forwards them to another server. Both
applications extend ``server.base_app``, and ``run`` runs them with uvicorn.
"""
