"""Does a pipeline's answer depend on the order of its documents? Measured without labels; see ``docs/audit.md``."""
