"""Sources of documents: the user, a memory of recent retrievals, or numbered headers in the prompt itself."""
