"""How the embedded model was made: its tokenizer, its batches, its training and its evaluation."""
