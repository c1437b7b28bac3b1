"""Train and evaluate the embedded model ``tiny``."""
