"""Prompts with fixed documents: a `Prompt`, flat texts to search, and those of the frameworks' templates."""

from ragbias import Prompt
from ragbias.boundaries import Registry, locate
from ragbias.models.tiny.world import held_out_corpus

ANIMALS = ["The falcon is red.\n", "An owl sleeps in the barn at noon.\n", "Two herons.\n", "A crow counts to six.\n"]
PROMPT = Prompt("Context:\n", ANIMALS, "Question: who sleeps?\nAnswer:")

DOCUMENTS = [
    "The Falcon Station opened in 1901.",
    "The Heron Bridge is long and green.",
    "The Otter Library lends books.",
]
TEXT = "Context: " + "\n\n".join(DOCUMENTS) + "\n\nQuestion: Which is green?"

SENTENCES = ["The falcon is red.", "An owl sleeps in the barn.", "Two herons fly south."]
TAGGED = "Context:\n" + "\n".join(f"<doc>{text}</doc>" for text in SENTENCES) + "\nQuestion: who sleeps?"

STATION = "The Falcon Station opened in 1901. It has four platforms."
BRIDGE = "The Heron Bridge is 300 metres long.\n\nIt was painted green."
LIBRARY = "The Otter Library lends twelve thousand books."
INVOICE_17 = "Invoice 17: the total is 250 euros, due on the first of May."
INVOICE_99 = "Invoice 99: the total is 930 euros, due on the last of June."
TERMS = "Payment terms: thirty days after delivery, by bank transfer."
LONG = "Chapter one. " + " ".join(f"sentence {number}" for number in range(60))

STOCK_TEMPLATES = [
    "Context: {0} {1} {2}\n\nQuestion: {q}\nAnswer:",  # tokens consist of a blank and the next word
    "Context:\n\n{0}\n\n{1}\n\n{2}\n\nQuestion: {q}\nAnswer:",
    "Documents [{0}, {1}, {2}]\n{q}",
    "{0}\n{1}\n{2}\n{q}",
]
_PASSAGES = [passage.text for passage in held_out_corpus(60, seed=1)]
_QUESTIONS = ["Who is it?", "When was the bridge built?", "What colour is the gate?", "Where is he?", "Why?"]
STOCK_PROMPTS = [
    (template.format(*documents, q=question), documents)
    for row, question in enumerate(_QUESTIONS)
    for column, template in enumerate(STOCK_TEMPLATES)
    for documents in [_PASSAGES[3 * (4 * row + column) :][:3]]
]


def numbered(order):
    """Render the sentences in the given order, below numbered headers."""
    blocks = [f"Document [{number}] {SENTENCES[index]}" for number, index in enumerate(order, 1)]
    return "<context>\n" + "\n".join(blocks) + "\n</context>\n\nQuestion: who sleeps?"


def prompt(*documents: str, separator: str = "\n\n", question: str = "Which is green?") -> str:
    return f"Use the context.\n\nContext: {separator.join(documents)}\n\nQuestion: {question}\nAnswer:"


def spans_of(text: str, *documents: str) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((text.index(document), text.index(document) + len(document)) for document in documents))


def registry_of(*retrievals: list[str]) -> Registry:
    registry = Registry()
    for retrieval in retrievals:
        registry.add(retrieval)
    return registry


def found_texts(text: str, **sources) -> list[str]:
    return [text[begin:end] for begin, end in locate(text, **sources).spans]


def known_to(source: str, texts: list[str]) -> dict[str, object]:
    """Return the argument of ``locate`` with which ``source`` knows the texts of one retrieval."""
    value = {"documents": texts, "registry": registry_of(texts), "segmenter": lambda text: texts}.get(source, [texts])
    return {source: value}
