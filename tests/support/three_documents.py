"""Flat prompts with three documents, for the integrations."""

DOCUMENTS = [
    "The Falcon Station opened in 1901.",
    "The Heron Bridge is long and green.",
    "The Otter Library lends books.",
]
TEXT = "Context: " + "\n\n".join(DOCUMENTS) + "\n\nQuestion: Which is green?"

SENTENCES = ["The falcon is red.", "An owl sleeps in the barn.", "Two herons fly south."]
TAGGED = "Context:\n" + "\n".join(f"<doc>{text}</doc>" for text in SENTENCES) + "\nQuestion: who sleeps?"


def numbered(order):
    """Render the sentences in the given order, below numbered headers."""
    blocks = [f"Document [{number}] {SENTENCES[index]}" for number, index in enumerate(order, 1)]
    return "<context>\n" + "\n".join(blocks) + "\n</context>\n\nQuestion: who sleeps?"
