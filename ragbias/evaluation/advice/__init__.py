"""Which method to take for which task, by what was measured: the evidence, the rule, and how it is told."""
