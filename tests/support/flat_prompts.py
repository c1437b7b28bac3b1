"""Flat prompts with documents, and the texts that are found in them."""

from ragbias.boundaries import Registry, locate

STATION = "The Falcon Station opened in 1901. It has four platforms."
BRIDGE = "The Heron Bridge is 300 metres long.\n\nIt was painted green."
LIBRARY = "The Otter Library lends twelve thousand books."
INVOICE_17 = "Invoice 17: the total is 250 euros, due on the first of May."
INVOICE_99 = "Invoice 99: the total is 930 euros, due on the last of June."
TERMS = "Payment terms: thirty days after delivery, by bank transfer."
LONG = "Chapter one. " + " ".join(f"sentence {number}" for number in range(60))


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
