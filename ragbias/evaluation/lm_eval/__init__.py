"""The lm-eval model ``ragbias``, which runs lm-eval's tasks with a method."""
