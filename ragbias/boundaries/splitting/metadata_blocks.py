"""Documents with their own metadata around them: ``Title: ...`` before the text, ``Source: ...`` behind it.

Between two documents stands the footer of the first, a separator, and the header of the second. Each is a constant
template around metadata of its own document. The template is read off one gap and then has to give every gap, word for
word, as well as the end of what stands before the first document and the beginning of what stands behind the last one.
If several templates do and part the gaps differently, none is taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ragbias.boundaries.matching.occurrences import common_prefix, common_suffix, holds_words, is_bounded
from ragbias.boundaries.spans import Span

MAX_CHOICES = 24  # templates tried for each gap
MAX_REFERENCES = 4  # gaps that a template is read off
MAX_ATOMS = 16  # values in one gap
MAX_VALUES = 6  # of which two may be words of the template
MAX_GAP = 6000  # characters
LEFT, RIGHT = 0, 1

Fields = dict[str, list[str]]  # the values of one document by name
Label = tuple[int, str]  # of which of the two documents, and the value's name
Part: TypeAlias = "str | Label"  # a constant, or a value
Accidental: TypeAlias = "frozenset[str | Span]"  # values, or places in a gap, that are words of the template


@dataclass(frozen=True)
class _Atom:
    """A place in a gap where a value stands, and all that it may be."""

    begin: int
    end: int
    labels: tuple[Label, ...]


@dataclass(frozen=True)
class _Template:
    """What stands between two documents: what belongs to the left one, a constant, what belongs to the right one."""

    footer: tuple[Part, ...]
    between: str
    header: tuple[Part, ...]


def blocks(text: str, spans: Sequence[Span], fields: Sequence[Fields]) -> list[Span] | None:
    """The spans, each with the header and the footer that its metadata shows; apart by nothing but the same separator.

    The number of a document, if it stands there beside its metadata, belongs to its header as well.

    Args:
        text: the prompt.
        spans: of the documents' texts, ascending, apart.
        fields: what is known of each of them.

    Returns:
        ``None`` if there is no metadata between the documents, or no template or more than one explains all of it.
    """
    gaps = [text[left[1] : right[0]] for left, right in itertools.pairwise(spans)]
    if not any(fields) or not any(map(holds_words, gaps)) or max(map(len, gaps)) > MAX_GAP:
        return None
    spans = _with_quotes(text, spans)
    gaps = [text[left[1] : right[0]] for left, right in itertools.pairwise(spans)]
    telling = _telling(fields)
    references = sorted(range(len(gaps)), key=lambda index: len(gaps[index]))[:MAX_REFERENCES]
    for index in references:
        gap, left, right = gaps[index], telling[index], telling[index + 1]
        for constants in _accidental(gap, left, right):
            found: list[list[Span]] = []
            for alike in _templates(gap, left, right, constants):
                applied = (_applied(text, spans, gaps, telling, template) for template in alike)
                split = next(filter(None, applied), None)
                found += [split] if split and split not in found else []
            if found:
                return found[0] if len(found) == 1 else None
    return None


def _accidental(gap: str, left: Fields, right: Fields) -> Iterator[Accidental]:
    """Which values of a gap may stand there by accident, as words of the template.

    None; or one, or two of them; or all but one place where a value stands: ``Source: Source``.
    """
    atoms = _atoms(gap, left, right, frozenset())
    values = list(dict.fromkeys(gap[atom.begin : atom.end] for atom in atoms))
    for count in range(3 if len(values) <= MAX_VALUES else 2):
        yield from map(frozenset, itertools.combinations(values[:MAX_ATOMS], count))
    for kept in atoms:
        others = [each for each in atoms if gap[each.begin : each.end] == gap[kept.begin : kept.end] and each != kept]
        if others:
            yield frozenset((each.begin, each.end) for each in others)


def _with_quotes(text: str, spans: Sequence[Span]) -> Sequence[Span]:
    """The spans with the quotation marks around them where these differ, as ``repr`` writes them."""
    marks = [(text[begin - 1 : begin], text[end : end + 1]) for begin, end in spans]
    if all(left == right and left in ("'", '"') for left, right in marks) and len(set(marks)) > 1:
        return [(begin - 1, end + 1) for begin, end in spans]
    return spans


def _telling(fields: Sequence[Fields]) -> list[Fields]:
    """The values that are not the same for all documents, which would be constants, and the documents' numbers."""
    names = dict.fromkeys(name for each in fields for name in each)
    alike = {name for name in names if all(each.get(name) == fields[0].get(name) for each in fields)}
    return [
        {**{name: values for name, values in each.items() if name not in alike}, "#0": [str(i)], "#1": [str(i + 1)]}
        for i, each in enumerate(fields)
    ]


def _templates(gap: str, left: Fields, right: Fields, accidental: Accidental) -> Iterator[Iterator[_Template]]:
    """What the gap may be made of; those that part it at the same place together."""
    atoms = _atoms(gap, left, right, accidental)
    if not atoms or len(atoms) > MAX_ATOMS:
        return
    edges = [0, *(edge for atom in atoms for edge in (atom.begin, atom.end)), len(gap)]
    constants = [gap[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True)]
    for count in range(len(atoms) + 1):  # values that belong to the left document
        sides = [LEFT] * count + [RIGHT] * (len(atoms) - count)
        options = [
            [label for label in atom.labels if label[0] == side] for atom, side in zip(atoms, sides, strict=True)
        ]
        if all(options):
            yield _labelled(constants, options, count)


def _labelled(constants: Sequence[str], options: Sequence[Sequence[Label]], count: int) -> Iterator[_Template]:
    for labels in itertools.islice(itertools.product(*options), MAX_CHOICES):
        if any(not name.startswith("#") for _, name in labels):
            footer = [part for pair in zip(constants, labels[:count], strict=False) for part in pair]
            header = [part for pair in zip(labels[count:], constants[count + 1 :], strict=True) for part in pair]
            yield _Template(tuple(footer), constants[count], tuple(header))


def _atoms(gap: str, left: Fields, right: Fields, accidental: Accidental) -> list[_Atom]:
    """The values that stand in a gap, the longest first where they overlap, in ascending order."""
    labels: dict[str, list[Label]] = {}
    for side, fields in ((LEFT, left), (RIGHT, right)):
        for name, values in fields.items():
            for value in values:
                if value in accidental:
                    continue
                labels.setdefault(value, []).append((side, name))
    atoms: list[_Atom] = []
    for value in sorted(labels, key=lambda value: (-len(value), value)):
        begin = gap.find(value)
        while begin >= 0 and len(atoms) <= MAX_ATOMS:
            end = begin + len(value)
            free = (begin, end) not in accidental and is_bounded(gap, begin, end)
            if free and all(end <= other.begin or begin >= other.end for other in atoms):
                atoms.append(_Atom(begin, end, tuple(labels[value])))
            begin = gap.find(value, end)
    return sorted(atoms, key=lambda atom: atom.begin)


def _applied(
    text: str, spans: Sequence[Span], gaps: Sequence[str], fields: Sequence[Fields], template: _Template
) -> list[Span] | None:
    """The blocks, if the template explains all gaps and what stands around the documents."""
    prefix, suffix = text[: spans[0][0]], text[spans[-1][1] :]
    headers = [_ending(prefix, template.header, fields[0])]
    footers: list[str | None] = []
    for gap, left, right in zip(gaps, fields, fields[1:], strict=False):
        split = _split(gap, template, left, right)
        if split is None:
            return None
        footers.append(split[0])
        headers.append(split[1])
    footers.append(_beginning(suffix, template.footer, fields[-1]))
    if headers[0] is None or footers[-1] is None:
        return None
    before, behind = prefix[: len(prefix) - len(headers[0])], suffix[len(footers[-1]) :]
    between = template.between
    head = common_suffix(between, before).lstrip()
    rest = between.removesuffix(head)
    foot = common_prefix(rest, behind).rstrip()
    if holds_words(rest[len(foot) :]):
        return None  # the first document lacks a part of the header, or the last one of the footer
    return [
        (begin - len(header or "") - len(head), end + len(footer or "") + len(foot))
        for (begin, end), header, footer in zip(spans, headers, footers, strict=True)
    ]


def _split(gap: str, template: _Template, left: Fields, right: Fields) -> tuple[str, str] | None:
    """Footer and header of a gap, if it is made as the template says."""
    for footer in _written(template.footer, left):
        if gap.startswith(footer + template.between):
            rest = gap[len(footer) + len(template.between) :]
            if any(rest == header for header in _written(template.header, right)):
                return footer, rest
    return None


def _ending(prefix: str, header: Sequence[Part], fields: Fields) -> str | None:
    return max((each for each in _written(header, fields) if prefix.endswith(each)), key=len, default=None)


def _beginning(suffix: str, footer: Sequence[Part], fields: Fields) -> str | None:
    return max((each for each in _written(footer, fields) if suffix.startswith(each)), key=len, default=None)


def _written(parts: Sequence[Part], fields: Fields) -> Iterator[str]:
    """What the parts say of a document; nothing if it has no value of a name, several if it has several."""
    options = [[part] if isinstance(part, str) else fields.get(part[1], []) for part in parts]
    return ("".join(choice) for choice in itertools.islice(itertools.product(*options), MAX_CHOICES))
