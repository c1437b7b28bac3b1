"""Models behind OpenAI's API: the application, what it asks, and how it is run.

``app`` is the HTTP application over an ``engine``: ``local_engine`` answers with models of this process, by way of the
``scheduler``; ``cluster_engine`` asks the replicas of a cluster, which ``ray_serve`` builds. ``proxy`` is an
application of its own that arranges the documents in front of somebody else's server. ``server`` runs either with
uvicorn.
"""
