"""This turn's documents are found in every conversation, or it is said that they cannot be told."""

import zlib

import pytest

from ragbias.boundaries import locate
from support.conversations import FAMILIES, FLAT, MISTRAL, QUOTES, conversation
from support.flat_prompts import registry_of

SEEDS = 4
WITHOUT_TOOLS = ("gemma", "deepseek", "alpaca", "command")  # or none that can be told from system messages
CASES = [
    *((family, where) for family in (*FAMILIES, MISTRAL) for where in ("user", "system", "tool")),
    (FLAT, "user"),
]
CASES = [(family, where) for family, where in CASES if where != "tool" or family not in WITHOUT_TOOLS]


def known(retrievals):
    """What the sources of a conversation may know, by how they know it."""
    return {
        "run": dict(run=retrievals),
        "run of this turn": dict(run=retrievals[:1]),
        "documents": dict(documents=retrievals[0]),
        "artifacts": dict(artifacts=retrievals),
        "registry": dict(registry=registry_of(*reversed(retrievals))),
    }


@pytest.mark.parametrize("quote", ["", *QUOTES])
@pytest.mark.parametrize(("family", "where"), CASES)
def test_this_turns_documents_are_found_or_refused_with_a_reason(family, where, quote):
    refused = 0
    first = zlib.crc32(f"{family} {where} {quote}".encode())
    for seed in range(first, first + SEEDS):
        for reverse in (False, True):
            case = conversation(seed, family, where, quote, reverse)
            for name, sources in known(case.retrievals).items():
                found = locate(case.text, **sources)
                if found.spans:
                    assert found.spans == case.spans, (seed, reverse, name)
                    assert found.reason == ""
                else:
                    refused += 1
                    assert "cannot be told" in found.reason, (seed, reverse, name)
    assert refused <= SEEDS * 2  # of ten times as many


@pytest.mark.parametrize(("family", "where"), CASES)
def test_what_earlier_turns_retrieved_and_what_is_quoted_is_counted(family, where):
    first = zlib.crc32(f"{family} {where}".encode())
    for seed in range(first, first + 3 * SEEDS):
        case = conversation(seed, family, where, "all in marks")
        every = {text for retrieval in case.retrievals for text in retrieval}
        if any(text in other for text in every for other in every - {text}):
            continue
        n_plain = sum(case.text.count(text) for text in every) - len(case.spans)
        for name in ("run", "artifacts", "registry"):
            assert locate(case.text, **known(case.retrievals)[name]).n_left_plain == n_plain, (seed, name)
        this_turn = locate(case.text, run=case.retrievals[:1], registry=registry_of(*reversed(case.retrievals)))
        assert (this_turn.source, this_turn.n_left_plain) == ("run", n_plain), seed
