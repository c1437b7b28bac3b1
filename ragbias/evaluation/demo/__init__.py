"""``ragbias demo`` and ``ragbias ask``: a FAISS index, a biased model, and answers from text files."""
