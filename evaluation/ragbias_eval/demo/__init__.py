"""The measurements of ``ragbias demo``."""
