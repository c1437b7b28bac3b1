"""Models that need no hub: the embedded model ``tiny``."""
