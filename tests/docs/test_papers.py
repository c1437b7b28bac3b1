"""Every command, method and intervention on the papers' page parses."""

import re
import shlex
from pathlib import Path

import pytest
from lm_eval.api.registry import model_registry

from ragbias.methods import parse_methods
from ragbias.methods.profiles import find_profile
from studies.interventions import parse_interventions
from support.documented_commands import parse_command, run_script

PAGE = Path(__file__).parents[2] / "docs" / "papers.md"
TEXT = PAGE.read_text(encoding="utf-8")
COMMAND = re.compile(r"`((?:ragbias|python -m) [a-z][^`]* [^`]+)`")
COMMANDS = sorted({" ".join(each.split()) for each in COMMAND.findall(TEXT)})
PAPERS = ("2407.01100", "2406.02536", "2512.13109", "2403.04797", "2310.01427")


@pytest.mark.parametrize("command", COMMANDS, ids=COMMANDS)
def test_every_command_parses(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if not command.startswith("ragbias calibrate"):  # which would refuse to overwrite it
        find_profile("tiny").save("profile.json")
    known = {name: model for name, model in model_registry._objs.items() if name != "ragbias"}
    monkeypatch.setattr(model_registry, "_objs", known)  # another test may have registered the lm-eval model
    program, *words = shlex.split(command)
    given = parse_command(words) if program == "ragbias" else run_script(words, only_parse=True)
    methods = given.get("methods") or given.get("method")
    if methods and words[0] != "calibrate":
        assert parse_methods(methods, "tiny")
    for text in given.get("intervene") or ():
        assert parse_interventions(text)


def test_every_experiment_has_a_command_or_a_reason():
    assert all(f"arxiv.org/abs/{number}" in TEXT for number in PAPERS)
    assert len(COMMANDS) > 30
    experiments = re.findall(r"^- \*\*.+(?:\n  .+)*", TEXT, re.MULTILINE)
    assert len(experiments) > 40
    reasons = ("not supported", "no task reads it", "a drawing")
    assert [each for each in experiments if "`" not in each and not any(reason in each for reason in reasons)] == []
