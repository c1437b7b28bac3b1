"""The synthetic world that the embedded model answers questions about.

An entity has a name of two words ("Falcon Station"). A passage contains one to three facts about one entity, and
filler sentences. A hash selects a fifth of all names for evaluation. Training uses the other names, so training and
evaluation share neither names nor facts.

``world.json`` contains word lists, and templates with ``{n}`` for the name and ``{v}`` for the value. In each template
of a fact, the value is close to the name and followed by punctuation. A value has one to three words, each a single
token. A four-layer model can learn to look up such values.
"""

import hashlib
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ragbias.errors import ArgumentError

_DATA = json.loads(Path(__file__).with_name("world.json").read_text(encoding="utf-8"))
WORDS: dict[str, list[str]] = {name: " ".join(lines).split() for name, lines in _DATA["words"].items()}
FILLERS: list[str] = _DATA["fillers"]
PREFIX, SEPARATOR = "<s>Context:\n", "\n\n"  # of prompts in evaluations


@dataclass(frozen=True)
class Attribute:
    """One property of an entity, with templates of facts and questions."""

    key: str
    words: list[str]  # names of word lists; a value has one word from each list
    facts: list[str]
    questions: list[str]
    distinct: int = 0  # if positive, a value instead has this number of different words, all from the first list

    def value(self, rng: random.Random) -> str:
        """Return a random value."""
        lists = [WORDS[name] for name in self.words]
        return " ".join(rng.sample(lists[0], self.distinct) if self.distinct else map(rng.choice, lists))


ATTRIBUTES = [Attribute(**attribute) for attribute in _DATA["attributes"]]


@dataclass(frozen=True)
class Passage:
    """A retrieved document. Its title is the name of an entity, and its text has a few sentences about the entity."""

    title: str
    text: str

    @property
    def document(self) -> str:
        """The title on the first line, then the text."""
        return f"{self.title}\n{self.text}"


@dataclass(frozen=True)
class WorldQuestion:
    """A question, its answer of one to three words, and the gold passage, which contains the answer."""

    question: str
    answer: str
    gold: Passage


@dataclass(frozen=True, order=True)
class Fact:
    """A statement in a passage: the value of an attribute of an entity. ``attribute`` is the key of the attribute."""

    name: str
    attribute: str
    value: str


@dataclass(frozen=True)
class Entry:
    """A passage with its facts."""

    passage: Passage
    facts: tuple[Fact, ...]


BY_KEY = {attribute.key: attribute for attribute in ATTRIBUTES}
_PATTERNS = [
    (attribute.key, re.compile(re.escape(template).replace(r"\{v\}", "([A-Za-z ]+)")))
    for attribute in ATTRIBUTES
    for template in attribute.facts
]


def is_held_out(name: str) -> bool:
    """Whether a name is reserved for evaluation. SHA-256 selects a fifth of all names."""
    return hashlib.sha256(name.encode()).digest()[0] < 51


def _names_by_word(held_out: bool) -> dict[str, list[str]]:
    names = {word: [f"{word} {kind}" for kind in WORDS["KINDS"]] for word in WORDS["NAME_WORDS"]}
    chosen = {word: [name for name in options if is_held_out(name) == held_out] for word, options in names.items()}
    return {word: options for word, options in chosen.items() if options}


_NAMES = {held_out: _names_by_word(held_out) for held_out in (False, True)}


def _sample_names(rng: random.Random, count: int, held_out: bool) -> list[str]:
    available = sorted(_NAMES[held_out])
    if count > len(available):
        raise ArgumentError(f"{count} passages; expected at most {len(available)}, the number of distinct names")
    return [rng.choice(_NAMES[held_out][word]) for word in rng.sample(available, count)]


def draw_entry(rng: random.Random, name: str, attributes: Sequence[Attribute]) -> Entry:
    """Draw a passage that states the values of some attributes of an entity."""
    stated = tuple(Fact(name, attribute.key, attribute.value(rng)) for attribute in attributes)
    sentences = [rng.choice(a.facts).format(n=name, v=fact.value) for a, fact in zip(attributes, stated, strict=True)]
    sentences += [filler.format(n=name) for filler in rng.sample(FILLERS, rng.choice((1, 1, 2)))]
    rng.shuffle(sentences)
    return Entry(Passage(name, " ".join(sentences)), stated)


def sample_entries(rng: random.Random, count: int, held_out: bool, attributes: int | None = None) -> list[Entry]:
    """Draw passages about different entities. Like retrieved passages, they often have attributes in common.

    ``attributes`` is the number of different attributes in all passages together. If it is None, it is drawn at random.
    """
    shared = rng.sample(ATTRIBUTES, attributes or rng.randint(1, len(ATTRIBUTES)))
    return [
        draw_entry(rng, name, rng.sample(shared, min(len(shared), rng.choice((1, 2, 2, 3)))))
        for name in _sample_names(rng, count, held_out)
    ]


def facts(passage: Passage) -> list[Fact]:
    """Parse the facts in the text of a passage."""
    found = []
    for sentence in re.split(r"(?<=\.) ", passage.text):
        general = sentence.replace(passage.title, "{n}")
        for key, pattern in _PATTERNS:
            if match := pattern.fullmatch(general):
                found.append(Fact(passage.title, key, match[1]))
    return sorted(found)


def ask(rng: random.Random, fact: Fact, gold: Passage) -> WorldQuestion:
    """Draw a question about a fact."""
    return WorldQuestion(rng.choice(BY_KEY[fact.attribute].questions).format(n=fact.name), fact.value, gold)


def held_out_corpus(size: int, seed: int) -> list[Passage]:
    """Draw ``size`` passages about different held-out entities. Each passage answers at least one question."""
    rng = random.Random(f"corpus {seed}")
    names = _sample_names(rng, size, held_out=True)
    return [draw_entry(rng, name, rng.sample(ATTRIBUTES, rng.choice((1, 2, 2, 3)))).passage for name in names]


def held_out_questions(corpus: Sequence[Passage], count: int, seed: int) -> list[WorldQuestion]:
    """Draw ``count`` different questions. Each has exactly one answer in ``corpus``."""
    rng = random.Random(f"questions {seed}")
    stated = [(fact, passage) for passage in corpus for fact in facts(passage)]
    if count > len(stated):
        raise ArgumentError(f"{count} questions; expected at most {len(stated)}, the number of facts in the corpus")
    return [ask(rng, fact, passage) for fact, passage in rng.sample(stated, count)]


def prompt(documents: Sequence[str], question: str) -> str:
    """Return the prompt that evaluations use: the documents, then the question."""
    return f"{PREFIX}{SEPARATOR.join(documents)}\n\nQuestion: {question}\nAnswer:"


def cases(documents: int, count: int, seed: int) -> list[tuple[WorldQuestion, list[Passage]]]:
    """Draw ``count`` questions with ``documents - 1`` distractors each. Passages often have attributes in common."""
    rng = random.Random(f"evaluation {seed}")
    drawn: list[tuple[WorldQuestion, list[Passage]]] = []
    while len(drawn) < count:
        corpus = [entry.passage for entry in sample_entries(rng, documents, held_out=True)]
        question = held_out_questions(corpus, 1, rng.randrange(2**32))[0]
        drawn.append((question, [passage for passage in corpus if passage is not question.gold]))
    return drawn
