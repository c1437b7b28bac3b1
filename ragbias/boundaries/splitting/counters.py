"""What may count documents in a text, and its value: figures, ordinals, letters, roman numerals, number words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
IRREGULAR = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"}
IRREGULAR |= {"twelve": "twelfth"} | {ten: f"{ten[:-1]}ieth" for ten in TENS.split()}
COUNTER = re.compile(
    r"(?:(?<![\w)\]}.-])-)?(?<!\d)\d{1,12}(?!\d)(?:(?:st|nd|rd|th)(?![^\W_]))?|[^\W\d_]+(?:-[^\W\d_]+)?"
)
ROMAN = re.compile(r"(?=.)M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})", re.IGNORECASE)
ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
LONGEST = 20  # letters of a word that counts


class Counter(NamedTuple):
    """Something at ``text[begin:end]`` that counts, and what it counts to. Only those of one kind are compared."""

    begin: int
    end: int
    kind: str
    value: int


def counters(text: str, begin: int, end: int) -> Iterator[Counter]:
    """All that may count in ``text[begin:end]``, in ascending order; one word may be of several kinds (``I``). What is
    around it does not matter, so that the number is the same beside any document."""
    region = text[begin:end]
    for match in COUNTER.finditer(region):
        if any(map(str.isdecimal, match[0])):
            found = [Counter(*match.span(), "figure", int(match[0].rstrip("stndrh")))]
        else:
            found = list(_in_words(region, *match.span()))
        yield from (each._replace(begin=begin + each.begin, end=begin + each.end) for each in found)


def _in_words(text: str, begin: int, end: int) -> Iterator[Counter]:
    """What a word, or two with a hyphen, may count to."""
    word = text[begin:end]
    signs = [index for index, each in enumerate(word) if unicodedata.category(each) in ("No", "Nl")]
    if signs:  # \u2460, \u2161; they are never a part of a word
        values = [(begin + index, unicodedata.numeric(word[index])) for index in signs]
        yield from (Counter(at, at + 1, "numeral", int(value)) for at, value in values if value == int(value))
        return
    if any(each.isalnum() for each in (text[max(0, begin - 1) : begin], text[end : end + 1])):
        return
    if len(word) <= LONGEST and (value := NUMBER_WORDS.get(word.lower())) is not None:
        yield Counter(begin, end, "word", value)
    elif "-" in word:
        middle = begin + word.index("-")
        yield from _in_words(text, begin, middle)
        yield from _in_words(text, middle + 1, end)
    else:
        if word[-2:-1].islower() and word[-1].isupper():
            begin, word = end - 1, word[-1]  # DocA
        yield from (Counter(begin, end, kind, value) for kind, value in _letters(word))


def _letters(word: str) -> Iterator[tuple[str, int]]:
    case = "upper" if word.isupper() else "lower"
    if len(word) == 1:
        value = unicodedata.numeric(word, None)
        if value is not None and value == int(value):
            yield "numeral", int(value)  # \u4e00, \u4e8c
        yield f"{case} letter", ord(word.lower()) - ord("a") + 1  # of other alphabets no first one is known
    if len(word) <= LONGEST and word in (word.upper(), word.lower()) and ROMAN.fullmatch(word):
        values = [ROMAN_VALUES[each] for each in word.upper()]
        pairs = zip(values, [*values[1:], 0], strict=True)
        yield f"{case} roman", sum(-value if value < following else value for value, following in pairs)


def _number_words() -> dict[str, int]:
    """Cardinals and ordinals from zero to ninety-nine."""
    units = UNITS.split()
    cardinals = dict(zip(units, range(20), strict=True))
    for tens, ten in enumerate(TENS.split(), 2):
        cardinals |= {ten: 10 * tens} | {
            f"{ten}-{unit}": 10 * tens + value for value, unit in enumerate(units[1:10], 1)
        }
    ordinals = {}
    for word, value in cardinals.items():
        head, hyphen, last = word.rpartition("-")
        ordinals[head + hyphen + IRREGULAR.get(last, f"{last}th")] = value
    return cardinals | ordinals


NUMBER_WORDS = _number_words()
