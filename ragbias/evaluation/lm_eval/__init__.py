"""lm-eval's tasks with a method: the lm-eval model ``ragbias``, and records of its answers."""
