"""Extend documents to the metadata around them: ``Title: ...`` before the text, ``Source: ...`` after it.

The gap between two documents contains the footer of the first document, a separator, and the header of the second one.
A template with fields for the metadata of a document produces all headers and footers. The template is derived from one
gap. It must reproduce all gaps, the end of the prefix and the beginning of the suffix exactly. If several templates do
so but split the gaps differently, the documents are not extended.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ragbias.boundaries.matching import is_bounded, is_number
from ragbias.boundaries.splitting import AMBIGUOUS_SPACE, RULES
from ragbias.boundaries.text import (
    CharSpan,
    Margins,
    add_margins,
    common_prefix,
    common_suffix,
    contains_words,
    gaps_between,
    margins_of,
    strip_span,
)
from ragbias.errors import AmbiguousSegmentsError

MAX_CHOICES = 24  # maximum number of templates tried for each gap
MAX_REFERENCES = 4  # maximum number of gaps from which templates are derived
MAX_MATCHES = 16  # maximum number of values matched in one gap
MAX_GAP = 6000  # maximum length of a gap in characters
LEFT, RIGHT = 0, 1

Fields = dict[str, list[str]]  # the metadata values of one document by field name
FieldOf = tuple[int, str]  # side of the document (LEFT or RIGHT), and name of the metadata field
Part: TypeAlias = "str | FieldOf"  # constant text, or a field


@dataclass(frozen=True)
class _ValueMatch:
    """A metadata value in a gap, and the metadata fields that have this value."""

    begin: int
    end: int
    fields: tuple[FieldOf, ...]


@dataclass(frozen=True)
class _Template:
    """The text between two documents: the left document's footer, a constant, and the right document's header."""

    footer: tuple[Part, ...]
    between: str
    header: tuple[Part, ...]


def extend_to_metadata(text: str, spans: Sequence[CharSpan], fields: Sequence[Fields]) -> list[CharSpan] | None:
    """Extend the spans of texts to the headers and footers that contain the documents' metadata and numbers.

    Return ``None`` if there is no metadata between the documents, no template produces it, or several templates do.
    Raise ``AmbiguousSegmentsError`` if the headers depend on the white space at the ends of the documents.
    """
    margins = margins_of(spans)
    found = [_extend_by_template(text, spans, fields)]
    if any(margins):
        bare = [strip_span(text, span) for span in spans]
        found += [_extend_by_template(text, bare, fields)] if _have_equal_space(text, bare) else []
    several = [blocks for blocks in found if blocks]
    if len({tuple(strip_span(text, span) for span in blocks) for blocks in several}) > 1:
        raise AmbiguousSegmentsError(AMBIGUOUS_SPACE)
    if not several:
        return None
    has_header = any(whole[0] < span[0] for whole, span in zip(several[0], spans, strict=True))
    has_footer = any(whole[1] > span[1] for whole, span in zip(several[0], spans, strict=True))
    margins = Margins(margins.left and not has_header, margins.right and not has_footer)
    return [add_margins(span, margins) for span in several[0]]


def _extend_by_template(text: str, spans: Sequence[CharSpan], fields: Sequence[Fields]) -> list[CharSpan] | None:
    gaps = gaps_between(text, spans)
    if not any(fields) or not any(map(contains_words, gaps)) or max(map(len, gaps)) > MAX_GAP:
        return None
    distinct = _distinct_fields(fields)
    references = sorted(range(len(gaps)), key=lambda index: len(gaps[index]))[:MAX_REFERENCES]
    for index in references:
        gap, left, right = gaps[index], distinct[index], distinct[index + 1]
        values = dict.fromkeys(gap[match.begin : match.end] for match in _find_values(gap, left, right, None))
        for word in (None, *values):  # one of the values may be a word of the template instead
            found: dict[int, list[CharSpan]] = {}
            for count, template in _templates(gap, left, right, word):
                if count not in found and (blocks := _apply_template(text, spans, gaps, distinct, template)):
                    found[count] = blocks
            if found:
                first, *others = found.values()
                return None if any(blocks != first for blocks in others) else first
    return None


def _have_equal_space(text: str, spans: Sequence[CharSpan]) -> bool:
    """Whether all gaps begin with the same white space and end with the same white space, as templates require."""
    gaps = gaps_between(text, spans)
    before = {gap[: len(gap) - len(gap.lstrip())] for gap in gaps}
    return len(before) == 1 and len({gap[len(gap.rstrip()) :] for gap in gaps}) == 1


def _distinct_fields(fields: Sequence[Fields]) -> list[Fields]:
    """Return the metadata fields that differ between documents. Add fields for a document's index and number."""
    names = dict.fromkeys(name for document in fields for name in document)
    alike = {name for name in names if all(document.get(name) == fields[0].get(name) for document in fields)}
    return [
        {**{name: texts for name, texts in document.items() if name not in alike}, "#0": [str(i)], "#1": [str(i + 1)]}
        for i, document in enumerate(fields)
    ]


def _templates(gap: str, left: Fields, right: Fields, word: str | None) -> Iterator[tuple[int, _Template]]:
    """Yield each template that produces the gap, and the number of metadata values in its footer."""
    matches = _find_values(gap, left, right, word)
    if not matches or len(matches) > MAX_MATCHES:
        return
    edges = [0, *(edge for match in matches for edge in (match.begin, match.end)), len(gap)]
    constants = [gap[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True)]
    for count in range(len(matches) + 1):
        sides = [LEFT] * count + [RIGHT] * (len(matches) - count)
        options = [
            [field for field in match.fields if field[0] == side] for match, side in zip(matches, sides, strict=True)
        ]
        for fields in itertools.islice(itertools.product(*options), MAX_CHOICES):
            if any(not name.startswith("#") for _, name in fields):
                footer = [part for pair in zip(constants, fields[:count], strict=False) for part in pair]
                header = [part for pair in zip(fields[count:], constants[count + 1 :], strict=True) for part in pair]
                yield count, _Template(tuple(footer), constants[count], tuple(header))


def _find_values(gap: str, left: Fields, right: Fields, word: str | None) -> list[_ValueMatch]:
    """Find all metadata values in a gap except ``word``, in order. Of overlapping values, keep the longest."""
    fields: dict[str, list[FieldOf]] = {}
    for side, values_by_name in ((LEFT, left), (RIGHT, right)):
        for name, values in values_by_name.items():
            for value in values:
                if value != word:
                    fields.setdefault(value, []).append((side, name))
    matches: list[_ValueMatch] = []
    for value in sorted(fields, key=lambda value: (-len(value), value)):
        begin = gap.find(value)
        while begin >= 0 and len(matches) <= MAX_MATCHES:
            end = begin + len(value)
            is_number_only = all(name.startswith("#") for _, name in fields[value])  # as in <doc1>
            is_separate = is_number(gap, begin, end) if is_number_only else is_bounded(gap, begin, end)
            if is_separate and all(end <= other.begin or begin >= other.end for other in matches):
                matches.append(_ValueMatch(begin, end, tuple(fields[value])))
            begin = gap.find(value, end)
    return sorted(matches, key=lambda match: match.begin)


def _apply_template(
    text: str, spans: Sequence[CharSpan], gaps: Sequence[str], fields: Sequence[Fields], template: _Template
) -> list[CharSpan] | None:
    """Return the extended spans if the template produces all gaps and the text around the documents, else ``None``."""
    prefix, suffix = text[: spans[0][0]], text[spans[-1][1] :]
    first = _longest_rendering(
        template.header,
        fields[0],
        lambda part: prefix.endswith(part) and _is_whole(prefix, len(prefix) - len(part), len(prefix)),
    )
    if first is None:
        return None
    headers, footers = [first], []
    for gap, left, right in zip(gaps, fields, fields[1:], strict=False):
        split = _split_gap(gap, template, left, right)
        if split is None:
            return None
        footers.append(split[0])
        headers.append(split[1])
    last = _longest_rendering(
        template.footer, fields[-1], lambda part: suffix.startswith(part) and _is_whole(suffix, 0, len(part))
    )
    if last is None:
        return None
    before, after = prefix[: len(prefix) - len(first)], suffix[len(last) :]
    head = common_suffix(template.between, before).lstrip()
    rest = template.between.removesuffix(head)
    foot = common_prefix(rest, after).rstrip()
    foot = "" if RULES.fullmatch(foot + "\n") else foot
    if contains_words(rest[len(foot) :]):
        return None  # the first document's header or the last document's footer is incomplete
    return [
        (begin - len(header) - len(head), end + len(footer) + len(foot))
        for (begin, end), header, footer in zip(spans, headers, [*footers, last], strict=True)
    ]


def _is_whole(text: str, begin: int, end: int) -> bool:
    """Whether the span cuts no word or number at its ends. A number may follow a word directly, as in ``<doc1>``."""
    return begin == end or (is_number if text[begin].isdigit() else is_bounded)(text, begin, end)


def _split_gap(gap: str, template: _Template, left: Fields, right: Fields) -> tuple[str, str] | None:
    """Return the footer and the header in a gap, or ``None`` if the template does not produce the gap."""
    for footer in _render(template.footer, left):
        if gap.startswith(footer + template.between):
            rest = gap[len(footer) + len(template.between) :]
            if any(rest == header for header in _render(template.header, right)):
                return footer, rest
    return None


def _longest_rendering(parts: Sequence[Part], fields: Fields, fits: Callable[[str], bool]) -> str | None:
    """Return the longest text that the parts can produce and that ``fits`` accepts."""
    return max(filter(fits, _render(parts, fields)), key=len, default=None)


def _render(parts: Sequence[Part], fields: Fields) -> Iterator[str]:
    """Yield all texts that the parts can produce, one for each choice of values."""
    options = [[part] if isinstance(part, str) else fields.get(part[1], []) for part in parts]
    return ("".join(choice) for choice in itertools.islice(itertools.product(*options), MAX_CHOICES))
