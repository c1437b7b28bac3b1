"""The bench: run every model with every method on every task. It writes a record per answer and can resume."""
