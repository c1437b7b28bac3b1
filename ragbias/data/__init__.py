"""Read data files: JSON lines, questions with their documents, and text files."""
