"""lm-eval's tasks with the model ``ragbias``."""
