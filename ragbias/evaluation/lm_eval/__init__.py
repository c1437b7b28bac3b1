"""The model ``ragbias`` for lm-eval, which runs lm-eval's tasks with a method."""
