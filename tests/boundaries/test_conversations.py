"""The current turn's documents are found, or the prompt runs plain with a reason."""

import zlib

import pytest

from ragbias.boundaries import locate
from ragbias.generation.preparing import split_located
from support.conversations import FAMILIES, FLAT, MISTRAL, QUOTES, conversation
from support.prompts import registry_of

SEEDS = 4
PLAIN_ROLES = ("human and ai", "user and assistant", "alpaca")  # in which messages have no clear ends
WITHOUT_TOOLS = ("gemma", "deepseek", "alpaca", "command")  # or whose tool messages look like system messages
CASES = [*((family, where) for family in (*FAMILIES, MISTRAL) for where in ("user", "system", "tool")), (FLAT, "user")]
CASES = [(family, where) for family, where in CASES if where != "tool" or family not in WITHOUT_TOOLS]


def known(retrievals):
    """Arguments of ``locate`` for a conversation's retrievals, by source."""
    return {
        "run": dict(run=retrievals),
        "run of this turn": dict(run=retrievals[:1]),
        "documents": dict(documents=retrievals[0]),
        "artifacts": dict(artifacts=retrievals),
        "registry": dict(registry=registry_of(*reversed(retrievals))),
    }


@pytest.mark.parametrize("quote", ["", *QUOTES])
@pytest.mark.parametrize(("family", "where"), CASES)
def test_documents_of_this_turn_are_found_or_refused_by_reason(family, where, quote):
    refused = 0
    first = zlib.crc32(f"{family} {where} {quote}".encode())
    for seed in range(first, first + SEEDS):
        for reverse in (False, True):
            case = conversation(seed, family, where, quote, reverse)
            for name, sources in known(case.retrievals).items():
                found = locate(case.text, **sources)
                split = split_located(case.text, found)
                parts, reason = split.parts, split.why_unsplit
                if parts.documents and not found.reason:
                    assert found.spans == case.spans, (seed, reverse, name)
                else:
                    refused += 1
                    assert found.reason or reason, (seed, reverse, name)
    assert refused <= SEEDS * 2 or quote or family in PLAIN_ROLES  # of ten times as many


@pytest.mark.parametrize(("family", "where"), CASES)
def test_earlier_retrievals_and_quotes_are_counted(family, where):
    first = zlib.crc32(f"{family} {where}".encode())
    for seed in range(first, first + 3 * SEEDS):
        case = conversation(seed, family, where, "all in marks")
        every = {text for retrieval in case.retrievals for text in retrieval}
        if any(text in other for text in every for other in every - {text}):
            continue
        count = sum(case.text.count(text) for text in every)
        for name in ("run", "artifacts", "registry"):
            found = locate(case.text, **known(case.retrievals)[name])
            assert found.n_left_plain == count - found.n_found, (seed, name)
        this_turn = locate(case.text, run=case.retrievals[:1], registry=registry_of(*reversed(case.retrievals)))
        assert (this_turn.source, this_turn.n_left_plain) == ("run", count - this_turn.n_found), seed
