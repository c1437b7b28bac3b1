"""An OpenAI-compatible server and proxy.

``app`` is the HTTP application over an engine: ``local_engine`` runs models in this process, ``ray_serve`` on
the replicas of a Ray cluster. ``proxy`` arranges the documents of requests and forwards them to another server.
``server.base_app`` creates the application that both extend, and ``run`` runs it with uvicorn.
"""
