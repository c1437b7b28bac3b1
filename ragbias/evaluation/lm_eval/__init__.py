"""The lm-eval model ``ragbias``, which runs tasks of lm-eval with a method."""
