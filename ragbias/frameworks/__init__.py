"""Shared parts of the framework integrations: options, recent retrievals, reports, tools, servers and event loops."""
