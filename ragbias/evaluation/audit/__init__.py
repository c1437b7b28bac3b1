"""Measure without labels whether a pipeline's answers depend on document order. See ``docs/how-to/audit.md``."""
