"""Both halves of the experiment together: its profile, and its command."""

import json

import pytest

import ragbias
from ragbias.errors import MethodError
from ragbias.methods import Profile
from studies.perturbation import measure


def test_a_profile_of_another_model_is_refused(llama, byte_tokenizer):
    lm = ragbias.DebiasedLM(llama, byte_tokenizer, method="none")
    with pytest.raises(MethodError, match="the profile is for a model of hidden size 4096 with 32 layers"):
        measure(lm, Profile("large", 4096, 32, 3, 0.0, (1, 2)), [], 2, 50, 0, 2, lambda each: each)


def test_the_command_draws_prints_and_writes(study, tmp_path):
    out, numbers = tmp_path / "p.png", tmp_path / "p.json"
    size = ("--strings", "3", "--length", "60", "--limit", "1", "--documents", "4")
    code, output, errors = study(
        "perturbation", "--model", "tiny", *size, "--channel", "53", "--out", out, "--json", numbers
    )
    assert code == 0, errors
    found = json.loads(numbers.read_text())
    assert "scaled from the paper's" in " ".join(output.split()) and out.stat().st_size > 10_000
    assert found["channel"] == 53 and found["span"] == [24, 36] and found["by"] == 12
    assert list(found["perturbations"]) == ["mask", "position ids"] and len(found["attention_by_factor"]) == 7
    code, _, errors = study("perturbation", "--model", "tiny", *size, "--channel", "128", "--out", out)
    assert code == 2 and "channel=128; expected an index below hidden_size=128" in " ".join(errors.split())
