"""An OpenAI-compatible server and proxy.

``app`` is the HTTP application over an engine: ``local_engine`` runs models in this process, ``ray_serve`` on
the replicas of a Ray cluster. ``proxy`` arranges documents in front of another server. Both applications begin as
``server.base_app``, and ``run`` runs them with uvicorn.
"""
