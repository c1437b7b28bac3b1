"""Do a pipeline's answers depend on its documents' order? Measured without labels, see ``docs/how-to/audit.md``."""
