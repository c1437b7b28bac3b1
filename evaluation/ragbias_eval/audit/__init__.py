"""Measure, without labels, whether a pipeline's answers depend on the document order. See ``docs/how-to/audit.md``."""
