"""Models behind OpenAI's API: the application, what it asks, and how it is run.

``app`` is the HTTP application over an ``engine``: ``local_engine`` answers with models of this process, by way of the
``scheduler``; ``ray_serve`` spreads the same over a cluster. ``proxy`` is an application of its own that arranges the
documents in front of somebody else's server. ``server`` runs either with uvicorn.
"""
