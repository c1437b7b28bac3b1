"""Which of many texts may occur in a prompt, without searching for each of them."""

from __future__ import annotations

from ragbias.boundaries.matching.occurrences import escaped_forms

LENGTH = 16  # characters of an n-gram
STRIDE = 8  # every eighth n-gram of a prompt is looked up, so eight n-grams of each text are kept
HEAD = 8  # characters of a text's beginning, for texts with too few n-grams


class NgramIndex:
    """An index of texts by character n-grams of their middle; beginnings are often alike, as with a file's name.

    A prompt is sampled at every ``STRIDE``-th character. However a text occurs in it, as it is or escaped, one of the
    samples is one of the text's ``STRIDE`` neighbouring n-grams. Not thread-safe.
    """

    def __init__(self) -> None:
        self._texts: dict[str, str | set[str]] = {}  # by n-gram; nearly all are of one text, which saves their sets
        self._short: dict[int, dict[str, set[str]]] = {}  # texts with too few n-grams, by length and text of a head

    def add(self, text: str) -> None:
        """Index a text that is not indexed yet."""
        ngrams = _middle_ngrams(text)
        for head in () if ngrams else _heads(text):
            self._short.setdefault(len(head), {}).setdefault(head, set()).add(text)
        for ngram in ngrams:
            texts = self._texts.setdefault(ngram, text)
            if isinstance(texts, set):
                texts.add(text)
            elif texts != text:
                self._texts[ngram] = {texts, text}

    def remove(self, text: str) -> None:
        """Forget a text."""
        ngrams = _middle_ngrams(text)
        for head in () if ngrams else _heads(text):
            heads = self._short[len(head)]
            heads[head].discard(text)
            if not heads[head]:
                del heads[head]
        for ngram in ngrams:
            texts = self._texts[ngram]
            if isinstance(texts, set) and len(texts) > 1:
                texts.discard(text)
            else:
                del self._texts[ngram]

    def candidates(self, prompt: str) -> set[str]:
        """The texts that may occur in the prompt: all that do, and few others."""
        found: set[str] = set()
        for length, heads in self._short.items():
            if heads:
                pieces = {prompt[begin : begin + length] for begin in range(len(prompt) - length + 1)}
                found.update(text for head in heads.keys() & pieces for text in heads[head])
        lookup = self._texts.get
        for begin in range(0, len(prompt) - LENGTH + 1, STRIDE):
            texts = lookup(prompt[begin : begin + LENGTH])
            if texts is None:
                continue
            if isinstance(texts, set):
                found |= texts
            else:
                found.add(texts)
        return found

    def __len__(self) -> int:
        """Number of entries, to which the memory in use is proportional."""
        return sum(len(texts) if isinstance(texts, set) else 1 for texts in self._texts.values()) + sum(
            len(texts) for heads in self._short.values() for texts in heads.values()
        )


def _heads(text: str) -> set[str]:
    """How each form of the text begins, without the white space around it."""
    stripped = text.strip()
    return {form[:HEAD] for form in (stripped, *escaped_forms(stripped))}


def _middle_ngrams(text: str) -> dict[str, None]:
    """The middle n-grams of every form of the text; none if the text is too short, as its escaped forms are longer."""
    ngrams: dict[str, None] = {}
    stripped = text.strip()  # its forms are parts of those of the whole text
    if len(stripped) >= LENGTH + STRIDE - 1:
        for form in (stripped, *escaped_forms(stripped)):
            first = (len(form) - LENGTH - STRIDE + 1) // 2
            ngrams.update((form[begin : begin + LENGTH], None) for begin in range(first, first + STRIDE))
    return ngrams
