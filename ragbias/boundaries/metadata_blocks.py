"""Extend documents to the metadata around them: ``Title: ...`` before the text, ``Source: ...`` after it.

The gap between two documents contains the footer of the first document, a separator, and the header of the second one.
A template with fields for the metadata of a document produces all headers and footers. The template is derived from one
gap. It must exactly reproduce all gaps, and the text next to the first and the last document. If several templates do
so but split the gaps differently, the documents are not extended.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ragbias.boundaries.matching import is_bounded, is_number
from ragbias.boundaries.splitting import AMBIGUOUS_SPACE, RULES
from ragbias.boundaries.text import (
    CharSpan,
    Margins,
    add_margins,
    common_prefix,
    common_suffix,
    contains_words,
    enclosing_elements,
    gaps_between,
    margins_of,
    strip_span,
)
from ragbias.errors import AmbiguousSegmentsError

MAX_REFERENCES = 4  # maximum number of gaps from which templates are derived
MAX_VALUES = 16  # maximum number of values in one gap
MAX_RENDERINGS = 256  # maximum number of texts tried as the header or footer of a document
MAX_GAP = 6000  # maximum length of a gap in characters
NUMBERS = ("#0", "#1")  # fields for a document's number, counted from 0 and from 1
NUMBERING_FIELDS = ("index", "idx", "position", "rank", "metadata")  # fields that may number the documents

Fields = dict[str, list[str]]  # the metadata values of one document by field name
Part = str | frozenset[str]  # constant text, or the fields that may have printed a value


@dataclass(frozen=True)
class _Value:
    """A metadata value in a gap, and the fields with this value in the documents before (left) and after (right)."""

    begin: int
    end: int
    left: frozenset[str]
    right: frozenset[str]


@dataclass(frozen=True)
class _Template:
    """The text between two documents: the left document's footer, a constant, and the right document's header."""

    footer: tuple[Part, ...]
    between: str
    header: tuple[Part, ...]


def extend_to_metadata(text: str, spans: Sequence[CharSpan], fields: Sequence[Fields]) -> Sequence[CharSpan]:
    """Extend the spans of texts to the headers and footers that contain the documents' metadata and numbers.

    Return ``spans`` if there is no metadata between the documents, no template produces it, or several templates do.
    Documents in XML elements also stay unchanged, because ``split`` extends them. Raise ``AmbiguousSegmentsError`` if
    the headers depend on the white space at the ends of the documents.
    """
    if enclosing_elements(text, spans) is not spans:
        return spans
    margins = margins_of(spans)
    found = [_extend_by_template(text, spans, fields)]
    if any(margins):
        found.append(_extend_by_template(text, [strip_span(text, span) for span in spans], fields))
    several = [blocks for blocks in found if blocks]
    if len({tuple(strip_span(text, span) for span in blocks) for blocks in several}) > 1:
        raise AmbiguousSegmentsError(AMBIGUOUS_SPACE)
    if not several:
        return spans
    has_header = any(whole[0] < span[0] for whole, span in zip(several[0], spans, strict=True))
    has_footer = any(whole[1] > span[1] for whole, span in zip(several[0], spans, strict=True))
    margins = Margins(margins.leading and not has_header, margins.trailing and not has_footer)
    return [add_margins(span, margins) for span in several[0]]


def _extend_by_template(text: str, spans: Sequence[CharSpan], fields: Sequence[Fields]) -> list[CharSpan] | None:
    gaps = gaps_between(text, spans)
    if not any(fields) or not any(map(contains_words, gaps)) or max(map(len, gaps)) > MAX_GAP:
        return None
    distinct = _distinct_fields(fields)
    apply = functools.partial(_apply_template, text, spans, gaps, distinct)
    shortest_first = sorted(range(len(gaps)), key=lambda index: len(gaps[index]))
    for index in shortest_first[:MAX_REFERENCES]:
        gap = gaps[index]
        values = _find_values(gap, distinct[index], distinct[index + 1])
        words = dict.fromkeys(gap[value.begin : value.end] for value in values)
        for word in ("", *words):  # one of the values may be a word of the template instead
            different: set[tuple[CharSpan, ...]] = set()
            for template in _templates(gap, [value for value in values if gap[value.begin : value.end] != word]):
                blocks = apply(template)
                if blocks and not _is_numbering(template, apply):
                    different.add(tuple(blocks))
            if different:
                return list(different.pop()) if len(different) == 1 else None
    return None


def _is_numbering(template: _Template, apply: Callable[[_Template], object]) -> bool:
    """Whether all values of a template are the documents' numbers, even if some of them also equal metadata."""
    numbers = _select_fields(template, lambda names: names.intersection(NUMBERS))
    metadata = _select_fields(template, lambda names: names.difference(NUMBERS) or names)
    return apply(numbers) is not None and apply(metadata) is None


def _select_fields(template: _Template, select: Callable[[frozenset[str]], frozenset[str]]) -> _Template:
    def select_in(parts: Sequence[Part]) -> tuple[Part, ...]:
        return tuple(part if isinstance(part, str) else select(part) for part in parts)

    return _Template(select_in(template.footer), template.between, select_in(template.header))


def _distinct_fields(fields: Sequence[Fields]) -> list[Fields]:
    """Return the metadata fields that differ between documents. Add fields for a document's index and number."""
    names = dict.fromkeys(name for document in fields for name in document)
    alike = {name for name in names if all(document.get(name) == fields[0].get(name) for document in fields)}
    distinct: list[Fields] = []
    for index, document in enumerate(fields):
        own = {name: texts for name, texts in document.items() if name not in alike}
        distinct.append({**own, "#0": [str(index)], "#1": [str(index + 1)]})
    return distinct


def _templates(gap: str, values: Sequence[_Value]) -> Iterator[_Template]:
    """Yield each template that produces the gap. They differ in the number of values that belong to the footer."""
    edges = [0, *(edge for value in values for edge in (value.begin, value.end)), len(gap)]
    constants = [gap[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True)]
    for count in range(len(values) + 1):
        names = [*(value.left for value in values[:count]), *(value.right for value in values[count:])]
        if all(names) and not frozenset().union(*names) <= set(NUMBERS):
            footer = [part for pair in zip(constants, names[:count], strict=False) for part in pair]
            header = [part for pair in zip(names[count:], constants[count + 1 :], strict=True) for part in pair]
            yield _Template(tuple(footer), constants[count], tuple(header))


def _find_values(gap: str, left: Fields, right: Fields) -> list[_Value]:
    """Find all metadata values in a gap, in order. Of overlapping values, keep the longest."""
    texts = {text for fields in (left, right) for values in fields.values() for text in values}
    found: list[_Value] = []
    for text in sorted(texts, key=lambda text: (-len(text), text)):
        sides = [frozenset(name for name, values in fields.items() if text in values) for fields in (left, right)]
        is_separate = is_number if (sides[0] | sides[1]) <= set(NUMBERS) else is_bounded  # a number, as in <doc1>
        begin = gap.find(text)
        while begin >= 0 and len(found) < MAX_VALUES:
            end = begin + len(text)
            if is_separate(gap, begin, end) and all(end <= other.begin or begin >= other.end for other in found):
                found.append(_Value(begin, end, *sides))
            begin = gap.find(text, end)
    return sorted(found, key=lambda value: value.begin)


def _apply_template(
    text: str, spans: Sequence[CharSpan], gaps: Sequence[str], fields: Sequence[Fields], template: _Template
) -> list[CharSpan] | None:
    """Return the extended spans if the template produces all gaps and the text around the documents, else ``None``."""
    prefix, suffix = text[: spans[0][0]], text[spans[-1][1] :]
    headers, footers = [], []
    for before, after, own in zip([prefix, *gaps], [*gaps, suffix], fields, strict=True):
        headers.append(next(filter(before.endswith, _renderings(template.header, own)), None))
        footers.append(next(filter(after.startswith, _renderings(template.footer, own)), None))
    for gap, footer, header in zip(gaps, footers, headers[1:], strict=False):
        if footer is None or header is None or gap != footer + template.between + header:
            return None
    first, last = headers[0], footers[-1]
    if first is None or last is None:
        return None
    before, after = prefix[: len(prefix) - len(first)], suffix[len(last) :]
    if not _is_whole(prefix, len(before), len(prefix)) or not _is_whole(suffix, 0, len(last)):
        return None
    head = common_suffix(template.between, before).lstrip()
    rest = template.between.removesuffix(head)
    foot = common_prefix(rest, after).rstrip()
    foot = "" if RULES.fullmatch(foot + "\n") else foot
    if contains_words(rest[len(foot) :]):
        return None  # the first document's header or the last document's footer is incomplete
    return [
        (begin - len(header or "") - len(head), end + len(footer or "") + len(foot))
        for (begin, end), header, footer in zip(spans, headers, footers, strict=True)
    ]


def _is_whole(text: str, begin: int, end: int) -> bool:
    """Whether no word or number continues beyond the span. A number may follow a word, as in ``<doc1>``."""
    if begin == end:
        return True
    is_separate = is_number if text[begin].isdigit() else is_bounded
    return is_separate(text, begin, end)


def _renderings(parts: Sequence[Part], fields: Fields) -> list[str]:
    """Return the texts that the parts produce with a document's fields, the longest first."""
    options: list[list[str]] = []
    for part in parts:
        if isinstance(part, str):
            options.append([part])
        else:
            values = itertools.chain.from_iterable(fields.get(name, ()) for name in sorted(part))
            options.append(list(dict.fromkeys(values)))
    texts = map("".join, itertools.islice(itertools.product(*options), MAX_RENDERINGS))
    return sorted(texts, key=len, reverse=True)


def printed_metadata(fields: Fields) -> tuple[str, ...]:
    """Return the printed metadata of a document, without fields that may number the documents."""
    own = (values for name, values in fields.items() if name.split("!")[0] not in NUMBERING_FIELDS)
    return tuple(itertools.chain.from_iterable(own))
