"""The bench: every model with every method on every task, one record per answer; a stopped run resumes."""
