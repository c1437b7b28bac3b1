"""``ragbias demo`` and ``ragbias ask``: a FAISS index, a biased model, and answers from one's own files."""
