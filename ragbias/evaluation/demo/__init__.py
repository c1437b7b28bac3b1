"""The measurements of ``ragbias demo``, and the text files of ``ragbias ask``."""
