"""What can be said and asked about an entity of the synthetic world.

In every fact template the value is followed by punctuation and the name stands close to it, and all values are one to
three single-token words: what a four-layer model can learn to look up.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from ragbias.models.tiny import words


@dataclass(frozen=True)
class Attribute:
    """One property of an entity: `facts` and `questions` are templates over `{n}` (name) and `{v}` (value)."""

    key: str
    value: Callable[[random.Random], str]
    facts: tuple[str, ...]
    questions: tuple[str, ...]


def _choose(*lists: list[str]) -> Callable[[random.Random], str]:
    def value(rng: random.Random) -> str:
        return " ".join(rng.choice(options) for options in lists)

    return value


def _passphrase(rng: random.Random) -> str:
    return " ".join(rng.sample(words.CODE_WORDS, 3))


ATTRIBUTES = (
    Attribute(
        "passphrase",
        _passphrase,
        (
            "The passphrase of {n} is {v}.",
            "The passphrase used at {n} is {v}.",
            "At {n} the passphrase is {v}.",
            "{n} has the passphrase {v}.",
        ),
        (
            "What is the passphrase of {n}?",
            "Which passphrase is used at {n}?",
            "What passphrase does {n} use?",
            "Tell me the passphrase of {n}.",
        ),
    ),
    Attribute(
        "director",
        _choose(words.FIRST_NAMES, words.LAST_NAMES),
        (
            "The director of {n} is {v}.",
            "{n} is led by {v}.",
            "{n} is directed by {v}.",
        ),
        (
            "Who is the director of {n}?",
            "Who leads {n}?",
            "Who directs {n}?",
            "Give the name of the director of {n}.",
        ),
    ),
    Attribute(
        "founder",
        _choose(words.FIRST_NAMES, words.LAST_NAMES),
        (
            "The founder of {n} was {v}.",
            "{n} was founded by {v}.",
            "{n} was set up by {v}.",
        ),
        (
            "Who was the founder of {n}?",
            "Who founded {n}?",
            "Who set up {n}?",
            "By whom was {n} founded?",
        ),
    ),
    Attribute(
        "mascot",
        _choose(words.MASCOT_TRAITS, words.ANIMALS),
        (
            "The mascot of {n} is the {v}.",
            "{n} chose as its mascot the {v}.",
            "At {n} the mascot is the {v}.",
        ),
        (
            "What is the mascot of {n}?",
            "Which mascot does {n} have?",
            "Which animal is the mascot of {n}?",
        ),
    ),
    Attribute(
        "colour",
        _choose(words.COLOURS),
        (
            "The colour of {n} is {v}.",
            "The walls of {n} are {v}.",
            "{n} is painted {v}.",
        ),
        (
            "What is the colour of {n}?",
            "What colour is {n}?",
            "Which colour is {n} painted?",
        ),
    ),
    Attribute(
        "town",
        _choose(words.TOWNS),
        (
            "{n} is located in {v}.",
            "{n} stands in {v}.",
            "The home town of {n} is {v}.",
        ),
        (
            "Where is {n}?",
            "Where is {n} located?",
            "In which town is {n}?",
            "What is the home town of {n}?",
        ),
    ),
    Attribute(
        "opening",
        _choose(words.TIMES, words.MONTHS),
        (
            "{n} opens every year in {v}.",
            "The opening of {n} is in {v}.",
            "The season at {n} starts in {v}.",
        ),
        (
            "When does {n} open?",
            "When is the opening of {n}?",
            "When does the season at {n} start?",
        ),
    ),
    Attribute(
        "dish",
        _choose(words.INGREDIENTS, words.DISHES),
        (
            "The favourite dish at {n} is {v}.",
            "The kitchen of {n} serves {v}.",
            "{n} is loved for its {v}.",
        ),
        (
            "What is the favourite dish at {n}?",
            "Which dish does {n} serve?",
            "What does the kitchen of {n} serve?",
            "What do people eat at {n}?",
        ),
    ),
    Attribute(
        "emblem",
        _choose(words.MATERIALS, words.OBJECTS),
        (
            "The emblem of {n} is the {v}.",
            "The gate of {n} bears the {v}.",
            "{n} has as its emblem the {v}.",
        ),
        (
            "What is the emblem of {n}?",
            "Which emblem does {n} have?",
            "What does the gate of {n} bear?",
        ),
    ),
    Attribute(
        "craft",
        _choose(words.CRAFT_STYLES, words.CRAFTS),
        (
            "The workshop of {n} makes {v}.",
            "{n} is known for {v}.",
            "The main craft of {n} is {v}.",
        ),
        (
            "What is {n} known for?",
            "What is the main craft of {n}?",
            "What does the workshop of {n} make?",
        ),
    ),
)

FILLERS = (
    "{n} lies near the old harbour.",
    "{n} has a long and quiet history.",
    "{n} is easy to reach by train.",
    "{n} was repaired after the great storm.",
    "Few people visit {n} in the rain.",
    "Many stories are told about {n}.",
    "The road to {n} is narrow.",
    "The garden behind {n} is open to everyone.",
    "Members of {n} meet once a month.",
    "Visitors are welcome in spring.",
    "Guided tours start at noon.",
    "The old building has three floors.",
    "A small bridge leads to the main gate.",
    "Tickets are sold at the front desk.",
    "School groups often come in summer.",
    "The archive is closed on Sundays.",
    "Local families have supported it for years.",
    "The staff speak several languages.",
    "There is a large car park behind the trees.",
    "In winter the paths are covered with snow.",
    "The roof was renewed some years ago.",
    "Most rooms look out over the water.",
    "The first visitors came by boat.",
    "A new wing is being planned.",
    "Photographs are allowed in all rooms.",
    "The bell rings twice a day.",
    "It is popular with students and painters.",
    "The annual report is printed on thick paper.",
    "Several letters from that time survive.",
    "The view from the top is famous.",
    "Concerts are held on warm evenings.",
    "A short film explains how it all began.",
    "Nobody remembers why the clock stopped.",
    "Bread is baked there every morning.",
    "The cellar is cool and dry.",
    "Dogs must be kept on a lead.",
)
