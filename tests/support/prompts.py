"""A prompt with four documents."""

from ragbias import Prompt

DOCUMENTS = ["The falcon is red.\n", "An owl sleeps in the barn at noon.\n", "Two herons.\n", "A crow counts to six.\n"]
PROMPT = Prompt("Context:\n", DOCUMENTS, "Question: who sleeps?\nAnswer:")
