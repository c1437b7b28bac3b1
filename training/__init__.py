"""Training of the embedded model: tokenizer, prompt formats, batches, training and evaluation."""
