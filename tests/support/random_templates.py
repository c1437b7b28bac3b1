"""Random documents and templates, to compare the segments of prompts in different orders."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ragbias import Prompt
from ragbias.boundaries import Registry, locate
from ragbias.boundaries.numbering import find_numbering
from ragbias.boundaries.sources import KnownText
from ragbias.errors import AmbiguousSegmentsError

WORDS = [
    "red", "rose", "gate", "Oak", "it's", "7", "a", "of", "Source", '"so"', "\u00e9t\u00e9", "x\\y", "owls.",
    "\u2603",
]  # fmt: skip
LONGER = [
    "The falcon is red.",
    "Two herons stand on a bridge of stone.",
    'An owl\n\nsleeps, it\'s "noon".',
    "C:\\new\\table",
]
ENDINGS = ["\n", "\n\n", "\r\n", "\u00a0", " ", "\t"]
BEGINNINGS = ["\n", "  ", "\u00a0", "\r\n"]
ITEMS = ["{t}"] * 6 + ["Title: {m}\n{t}", "{m}: {t}", "<doc>{t}</doc>", "<doc>\n{t}\n</doc>", "- {t}", '"{t}"']
ITEMS += ["[{n}] {t}", "{n}. {t}", "{t}\nSource: {m}", "Text: {t}", "Content: {t}\n(from {m})"]
ITEMS += ["<doc title='{m}'>{t}</doc>"]
SEPARATORS = [
    "\n\n", "\n\n", "\n\n", "\n", "\n", " ", "---", "\n---\n", "\n\n---\n\n", "###", "\n###\n", "\n\n\n", ", ",
]  # fmt: skip
PREFIXES = [
    "", "Context: ", "Context:\n\n", "Use this.\n", "Read:", "<|user|>\n", "[", "<context>", "Docs:\n---\n",
    "Use.\n\n\n",
]  # fmt: skip
SUFFIXES = [
    "\n\nQuestion: which?", "\nWhich?", "", " Which?", "]", "</context>\nQ: who?", "\n\n\nQ", "\n---\nWhich?", "Q",
    "\r\nQ",
]  # fmt: skip
WRITERS: dict[str, Callable[[Sequence[str]], str]] = {
    "list": lambda texts: str(list(texts)),
    "tuple": lambda texts: repr(tuple(texts)),
    "json": lambda texts: json.dumps(list(texts)),
    "json, unicode": lambda texts: json.dumps(list(texts), ensure_ascii=False),
    "json, indented": lambda texts: json.dumps(list(texts), indent=1),
    "json, records": lambda texts: json.dumps([{"text": text} for text in texts]),
    "records": lambda texts: str([{"text": text} for text in texts]),
    "joined literals": lambda texts: "\n".join(map(repr, texts)),
}


@dataclass(frozen=True)
class Template:
    """A template that prints documents. ``writer`` takes precedence over ``item`` and ``separator``."""

    prefix: str
    suffix: str
    item: str
    separator: str
    writer: str
    stripped: bool

    def prompt(self, documents: Sequence[tuple[str, str]]) -> str:
        """Render the prompt with the texts and titles in order."""
        texts = [text.strip() if self.stripped else text for text, _ in documents]
        if self.writer:
            return self.prefix + WRITERS[self.writer](texts) + self.suffix
        titles = [title for _, title in documents]
        items = (
            self.item.format(t=text, m=title, n=n) for n, (text, title) in enumerate(zip(texts, titles, strict=True), 1)
        )
        return self.prefix + self.separator.join(items) + self.suffix


def template(rng: random.Random) -> Template:
    """Draw a template."""
    writer = rng.choice(list(WRITERS)) if rng.random() < 0.3 else ""
    choices = (rng.choice(each) for each in (PREFIXES, SUFFIXES, ITEMS, SEPARATORS))
    return Template(*choices, writer, rng.random() < 0.3)


def documents(rng: random.Random) -> list[tuple[str, str]]:
    """Draw two to four texts with titles. Texts may be short, part of another text, or surrounded by white space."""
    texts: list[str] = []
    for _ in range(rng.randint(2, 4)):
        if rng.random() < 0.2:
            text = rng.choice("a.7e-")
        elif texts and rng.random() < 0.15:
            text = rng.choice(texts).strip() + rng.choice(["", " red", ".", " " + rng.choice(texts).strip()])
        elif rng.random() < 0.4:
            text = rng.choice(LONGER)
        else:
            text = rng.choice([" ", " ", "\n", "\n\n"]).join(rng.choices(WORDS, k=rng.randint(1, 7)))
        if rng.random() < 0.5:
            text = text.strip() + rng.choice(ENDINGS)
        if rng.random() < 0.15:
            text = rng.choice(BEGINNINGS) + text
        texts.append(text)
    return [(text, rng.choice(["On owls", "Gates", "a.txt", "On otters", "7"])) for text in texts]


def outcome(text: str, named: Sequence[str], source: str) -> tuple[str, tuple[str, ...], str] | None:
    """Return prefix, sorted segments and suffix, or ``None`` if the report is not clean."""
    registry = Registry()
    if source == "registry":
        registry.add(named)
    found = locate(text, **{source: {"registry": registry, "run": [named]}.get(source, named)})
    if found.reason or found.n_found < 2 or find_numbering(text, found.spans).reveal_order:
        return None
    try:
        prompt = Prompt.from_text(text, found.spans)
    except AmbiguousSegmentsError:
        return None
    return prompt.prefix, tuple(sorted(prompt.documents)), prompt.suffix


def named(pairs: Sequence[tuple[str, str]], with_titles: bool) -> list[str]:
    """Return the texts that a retriever reports, with or without titles."""
    return [KnownText.of(text, {"title": title}) if with_titles else text for text, title in pairs]
