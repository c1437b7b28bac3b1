"""The bench: run all models with all methods on all tasks, and write a record per answer. A run can resume."""
