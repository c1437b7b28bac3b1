"""The synthetic world that the embedded model answers questions about.

An entity is a name of two words ("Falcon Station"); a passage states one to three facts about one entity between filler
sentences. A fifth of all names, chosen by a hash, is held out: training never sees them, evaluation uses nothing else.
So no name, and no combination of name, attribute and value, of an evaluation occurs in training.
"""

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ragbias.errors import ArgumentError
from ragbias.models.tiny.attributes import ATTRIBUTES, FILLERS, Attribute
from ragbias.models.tiny.words import KINDS, NAME_WORDS


@dataclass(frozen=True)
class Passage:
    """A retrieved document: the entity's name as title, and a text of a few sentences."""

    title: str
    text: str


@dataclass(frozen=True)
class WorldQuestion:
    """A question, its answer (one to three words) and the passage that holds it."""

    question: str
    answer: str
    gold: Passage


@dataclass(frozen=True, order=True)
class Fact:
    """What one sentence states: `attribute` is a key of `ragbias.models.tiny.attributes.ATTRIBUTES`."""

    name: str
    attribute: str
    value: str


@dataclass(frozen=True)
class Entry:
    """A passage with the facts it was made from."""

    passage: Passage
    facts: tuple[Fact, ...]


_BY_KEY = {attribute.key: attribute for attribute in ATTRIBUTES}
_PATTERNS = [
    (attribute.key, re.compile(re.escape(template).replace(r"\{v\}", "([A-Za-z ]+)")))
    for attribute in ATTRIBUTES
    for template in attribute.facts
]


def is_held_out(name: str) -> bool:
    """Whether a name is kept for evaluation: a fixed fifth of all names, by their SHA-256."""
    return hashlib.sha256(name.encode()).digest()[0] < 51


def _names_by_word(held_out: bool) -> dict[str, list[str]]:
    names = {word: [f"{word} {kind}" for kind in KINDS] for word in NAME_WORDS}
    kept = {word: [name for name in options if is_held_out(name) == held_out] for word, options in names.items()}
    return {word: options for word, options in kept.items() if options}


_NAMES = {held_out: _names_by_word(held_out) for held_out in (False, True)}
_WORDS = {held_out: sorted(names) for held_out, names in _NAMES.items()}


def _sample_names(rng: random.Random, count: int, held_out: bool) -> list[str]:
    available = _WORDS[held_out]
    if count > len(available):
        raise ArgumentError(f"{count} passages asked for, but names are unique and the world has {len(available)}")
    return [rng.choice(_NAMES[held_out][word]) for word in rng.sample(available, count)]


def _entry(rng: random.Random, name: str, attributes: Sequence[Attribute]) -> Entry:
    stated = tuple(Fact(name, attribute.key, attribute.value(rng)) for attribute in attributes)
    sentences = [rng.choice(a.facts).format(n=name, v=fact.value) for a, fact in zip(attributes, stated, strict=True)]
    sentences += [filler.format(n=name) for filler in rng.sample(FILLERS, rng.choice((1, 1, 2)))]
    rng.shuffle(sentences)
    return Entry(Passage(name, " ".join(sentences)), stated)


def sample_entries(rng: random.Random, count: int, held_out: bool, attributes: int | None = None) -> list[Entry]:
    """Passages about different entities that share attributes, as retrieved passages do.

    `attributes` is how many kinds of facts occur among them; None draws that number.

    Raises:
        ArgumentError: if `count` exceeds the number of different names.
    """
    shared = rng.sample(ATTRIBUTES, attributes or rng.randint(1, len(ATTRIBUTES)))
    return [
        _entry(rng, name, rng.sample(shared, min(len(shared), rng.choice((1, 2, 2, 3)))))
        for name in _sample_names(rng, count, held_out)
    ]


def restate(rng: random.Random, entry: Entry) -> Entry:
    """Another passage about the same entity that contradicts the first: the same kinds of facts, drawn anew."""
    return _entry(rng, entry.passage.title, [_BY_KEY[fact.attribute] for fact in entry.facts])


def facts(passage: Passage) -> list[Fact]:
    """The facts that a passage states, read from its text."""
    found = []
    for sentence in re.split(r"(?<=\.) ", passage.text):
        general = sentence.replace(passage.title, "{n}")
        for key, pattern in _PATTERNS:
            if match := pattern.fullmatch(general):
                found.append(Fact(passage.title, key, match[1]))
    return sorted(found)


def ask(rng: random.Random, fact: Fact, gold: Passage) -> WorldQuestion:
    """One of the ways to ask for a fact."""
    return WorldQuestion(rng.choice(_BY_KEY[fact.attribute].questions).format(n=fact.name), fact.value, gold)


def held_out_corpus(size: int, seed: int) -> list[Passage]:
    """`size` passages about different held-out entities; each answers at least one question.

    Raises:
        ArgumentError: if `size` exceeds the number of different held-out names.
    """
    rng = random.Random(f"corpus {seed}")
    names = _sample_names(rng, size, held_out=True)
    return [_entry(rng, name, rng.sample(ATTRIBUTES, rng.choice((1, 2, 2, 3)))).passage for name in names]


def held_out_questions(corpus: Sequence[Passage], count: int, seed: int) -> list[WorldQuestion]:
    """`count` different questions, each with one right answer in `corpus`.

    Raises:
        ArgumentError: if the corpus does not hold `count` facts.
    """
    rng = random.Random(f"questions {seed}")
    stated = [(fact, passage) for passage in corpus for fact in facts(passage)]
    if count > len(stated):
        raise ArgumentError(f"{count} questions asked for, but the corpus states {len(stated)} facts")
    return [ask(rng, fact, passage) for fact, passage in rng.sample(stated, count)]
