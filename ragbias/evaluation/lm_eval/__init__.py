"""Tasks of lm-eval with a method: the model ``ragbias`` of lm-eval, and records of its answers."""
