"""``ragbias speed --cached``: what was computed and what was kept, beside what arithmetic could save."""

import json

import pytest

from ragbias.evaluation.cost.arithmetic import cached_prefill, plain_prefill
from ragbias.methods.arithmetic import ModelShape, PromptLengths

QUICK = ("--rounds", 1, "--steps", 1)


def test_documents_are_computed_once_and_found_in_memory_and_on_disk_in_any_order(cli, config, tmp_path):
    out = tmp_path / "cached.json"
    sizes = ("--documents", "2,3", "--tokens", 4, "--prefixes", "5,0", "--methods", "pcw")
    code, said, _ = cli("speed", "--cached", "--model", config, *sizes, *QUICK, "--json", out)
    written = json.loads(out.read_text())
    assert code == 0 and set(written) == {"settings", "model", "versions", "machine", "results"}
    found = written["results"]
    assert len(found) == 4 and said.count("on disk") == 4
    seen = {(each["method"], each["documents"], each["tokens"], each["prefix"]) for each in found}
    assert seen == {("pcw", documents, 4, prefix) for documents in (2, 3) for prefix in (5, 0)}
    for each in found:
        assert {state: cost["hit_rate"] for state, cost in each["states"].items()} == {
            "none": 0, "cold": 0, "memory": 1, "disk": 1,
        }  # fmt: skip
        assert each["bytes_per_token"] == 2 * 2 * 2 * 16 * 4  # keys and values, layers, key heads, dimensions, bytes
        assert each["states"]["none"]["faster"] == [1, 1, 1] and each["limit"] > 1


def test_the_limit_counts_what_follows_the_documents():
    shape, lengths = ModelShape(8, 16, 2, 1, 4, 3, 50), PromptLengths(2, (3, 4), 5)
    whole, kept = plain_prefill(shape, lengths), cached_prefill(shape, lengths)
    pairs_before = 9 * 10 // 2
    assert whole - kept == 3 * (9 * shape.weights(1) + 2 * shape.width * pairs_before)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--cached", "--methods", "pine"], "pine has no reusable documents"),
        (["--cached", "--methods", "pced"], "pced needs whole prompts"),
        (["--cached", "--ragged"], "leave out --ragged"),
        (["--cached", "--documents", "99"], "take fewer documents or tokens"),
        (["--tokens", "5,6"], "go with --cached"),
        (["--prefixes", "5"], "go with --cached"),
    ],
)
def test_what_does_not_go_together_is_named(cli, config, given, words):
    code, _, said = cli("speed", "--model", config, *given, *QUICK)
    assert code == 2 and words in " ".join(said.split())
