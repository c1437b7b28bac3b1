"""Train reader adapters: a small LoRA on the tokens after the documents, see ``ragbias.readers``."""
