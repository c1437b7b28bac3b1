"""Which of many texts stand in a prompt, without searching for each of them."""

from __future__ import annotations

from ragbias.boundaries.matching.occurrences import escaped_forms

WINDOW = 16  # characters
STRIDE = 8  # every eighth window of a prompt is looked up, so eight windows of each text are kept


class Windows:
    """An index of texts by windows in their middle; beginnings are often alike, as with a file's name in front.

    A prompt is sampled at every ``STRIDE``-th character. However a text stands in it, as it is or escaped, one of the
    samples is one of the text's ``STRIDE`` neighbouring windows. Not thread-safe.
    """

    def __init__(self) -> None:
        self._texts: dict[str, str | set[str]] = {}  # by window; nearly all hold one text, which saves their sets
        self._short: set[str] = set()  # texts with too few windows

    def add(self, text: str) -> None:
        """Index a text that is not indexed yet."""
        windows = _windows(text)
        if not windows:
            self._short.add(text)
        for window in windows:
            texts = self._texts.setdefault(window, text)
            if isinstance(texts, set):
                texts.add(text)
            elif texts != text:
                self._texts[window] = {texts, text}

    def remove(self, text: str) -> None:
        """Forget a text."""
        self._short.discard(text)
        for window in _windows(text):
            texts = self._texts[window]
            if isinstance(texts, set) and len(texts) > 1:
                texts.discard(text)
            else:
                del self._texts[window]

    def candidates(self, prompt: str) -> set[str]:
        """The texts that may stand in the prompt: all that do, and few others."""
        found = set(self._short)
        lookup = self._texts.get
        for begin in range(0, len(prompt) - WINDOW + 1, STRIDE):
            texts = lookup(prompt[begin : begin + WINDOW])
            if texts is None:
                continue
            if isinstance(texts, set):
                found |= texts
            else:
                found.add(texts)
        return found

    def clear(self) -> None:
        """Forget all texts."""
        self._texts.clear()
        self._short.clear()

    def __len__(self) -> int:
        """Number of entries, to which the memory in use is proportional."""
        return sum(len(texts) if isinstance(texts, set) else 1 for texts in self._texts.values()) + len(self._short)


def _windows(text: str) -> dict[str, None]:
    """The middle windows of every form of the text; none if the text is too short, as its escaped forms are longer."""
    windows: dict[str, None] = {}
    stripped = text.strip()  # its forms stand inside those of the whole text
    if len(stripped) >= WINDOW + STRIDE - 1:
        for form in (stripped, *escaped_forms(stripped)):
            first = (len(form) - WINDOW - STRIDE + 1) // 2
            windows.update((form[begin : begin + WINDOW], None) for begin in range(first, first + STRIDE))
    return windows
