"""``python -m studies.cached_speed``: computed and cached tokens, next to the arithmetic limits."""

import json

import pytest
from transformers import AutoConfig

from ragbias.generation.attaching import attached_batch
from studies import cached_speed
from studies.arithmetic import ModelShape, PromptLengths, plain_prefill, shape_of
from studies.cached_speed import cached_prefill, main
from studies.speed_inputs import SUFFIX

QUICK = ("--rounds", "1", "--steps", "1")


def test_documents_are_computed_once_and_found_in_any_order(config, tmp_path, capsys, monkeypatch):
    orders, times = set(), cached_speed._measure_times

    def recorded(model, method, prompt, *rest):
        orders.add(tuple(map(tuple, prompt.documents)))
        return times(model, method, prompt, *rest)

    monkeypatch.setattr(cached_speed, "_measure_times", recorded)
    out = tmp_path / "cached.json"
    sizes = ("--documents", "2,3", "--tokens", "4", "--prefixes", "5,0", "--methods", "pcw")
    main(["--model", config, *sizes, *QUICK, "--json", str(out)])
    written = json.loads(out.read_text())
    assert set(written) == {"settings", "model", "versions", "machine", "results"}
    assert len(orders) > len({frozenset(order) for order in orders})
    found = written["results"]
    assert len(found) == 4 and capsys.readouterr().out.count("on disk") == 4
    seen = {(each["method"], each["documents"], each["tokens"], each["prefix"]) for each in found}
    assert seen == {("pcw", documents, 4, prefix) for documents in (2, 3) for prefix in (5, 0)}
    for each in found:
        assert {state: cost["hit_rate"] for state, cost in each["states"].items()} == {
            "none": 0, "cold": 0, "memory": 1, "disk": 1,
        }  # fmt: skip
        assert each["bytes_per_token"] == 2 * 2 * 2 * 16 * 4  # keys and values, layers, key heads, dimensions, bytes
        assert each["states"]["none"]["faster"] == [1, 1, 1] and each["limit"] > 1


@pytest.mark.parametrize(("method", "cold"), [("pced", 3 * 5 / 32), ("mixture", 2 * 5 / 27)])
def test_the_prompts_of_a_joint_method_share_their_prefix(config, tmp_path, method, cold):
    out = tmp_path / "cached.json"
    sizes = ("--documents", "3", "--tokens", "4", "--prefixes", "5", "--methods", method, "--reader-rank", "2")
    main(["--model", config, *sizes, *QUICK, "--json", str(out)])
    (found,) = json.loads(out.read_text())["results"]
    assert [cost["hit_rate"] for cost in found["states"].values()] == [0, cold, 1, 1]
    assert found["states"]["memory"]["decode_ratio"][0] > 0


def test_a_random_reader_is_timed_with_the_method_only(config, tmp_path, capsys, monkeypatch):
    used = []

    def recorded(model, method, *arguments, lora, **named):
        used.append((method.name, lora and next(iter(lora.weights.values()))[0].shape[0]))
        return attached_batch(model, method, *arguments, lora=lora, **named)

    monkeypatch.setattr(cached_speed, "attached_batch", recorded)
    out = tmp_path / "cached.json"
    sizes = ("--documents", "2", "--tokens", "4", "--prefixes", "5", "--methods", "pcw", "--reader-rank", "2")
    main(["--model", config, *sizes, *QUICK, "--json", str(out)])
    assert set(used) == {("none", None), ("pcw", 2)}
    assert "with a random reader of rank 2" in " ".join(capsys.readouterr().out.split())
    written = json.loads(out.read_text())
    assert written["settings"]["reader_rank"] == 2 and written["results"][0]["states"]["memory"]["hit_rate"] == 1


def test_the_limit_counts_what_follows_the_documents():
    shape, lengths = ModelShape(8, 16, 2, 1, 4, 3, 50), PromptLengths(2, (3, 4), 5)
    pairs_before = 9 * 10 // 2
    saved = plain_prefill(shape, lengths) - cached_prefill(shape, lengths)
    assert saved == 3 * (9 * shape.weights(1) + 2 * shape.width * pairs_before)


def test_a_mixtures_limit_counts_every_prompt_and_suffix_logit(config, tmp_path):
    out = tmp_path / "cached.json"
    main(["--model", config, "--documents", "3", "--tokens", "4", "--prefixes", "5", "--methods", "mixture", *QUICK,
          "--json", str(out)])  # fmt: skip
    (found,) = json.loads(out.read_text())["results"]
    shape = shape_of(AutoConfig.from_pretrained(config))
    required = 3 * cached_prefill(shape, PromptLengths(5, (4,), SUFFIX), SUFFIX)
    assert found["limit"] == plain_prefill(shape, PromptLengths(5, (4, 4, 4), SUFFIX)) / required


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            ["--methods", "pine"],
            "pine has no reusable documents; use one of pcw, structured-prompting, ape, pced, mixture",
        ),
        (["--methods", "permutation-vote"], "permutation-vote needs several passes"),
        (["--documents", "99"], "use fewer documents or tokens"),
        (
            ["--documents", "2", "--tokens", "4", "--reader-rank", "-1"],
            "reader_rank=-1; expected a whole number from 1",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(config, capsys, given, words):
    with pytest.raises(SystemExit) as ended:
        main(["--model", config, *given, *QUICK])
    assert ended.value.code == 2 and words in " ".join(capsys.readouterr().err.split())
