"""Audits of a model on a server have the same figures as local audits of that model."""

import json
from collections.abc import Iterator

import pytest

from ragbias import DebiasedLM
from ragbias.data.questions import Question
from ragbias.errors import MethodError, ServerError
from ragbias.generation import GenerationSettings
from ragbias.methods import AttentionSorting, CanonicalOrder, NoMethod
from ragbias.models.tiny.world import held_out_corpus
from ragbias_eval.audit.cases import UpstreamLM, from_questions
from ragbias_eval.audit.outcomes import audit
from support.live_server import serving


@pytest.fixture(scope="module")
def address(tiny: DebiasedLM) -> Iterator[str]:
    with serving({"tiny": tiny}) as found:
        yield found


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    texts = [each.text for each in held_out_corpus(15, seed=3)]
    groups = [texts[begin : begin + 3] for begin in range(0, 15, 3)]
    return [Question(f"What is said of {own[0].split()[1]}?", tuple(own), ()) for own in groups]


def test_the_figures_are_those_of_the_model_audited_here(tiny, address, questions):
    methods = {"none": NoMethod(), "canonical-order": CanonicalOrder()}
    there = audit(from_questions(UpstreamLM(address, None), questions), methods, orders=2)
    here = audit(from_questions(tiny, questions), methods, orders=2)
    answers = [[each.by_order for each in audit.outcomes["none"].answers] for audit in (there, here)]
    assert answers[0] == answers[1]
    assert there.outcomes["none"].answer_flips == here.outcomes["none"].answer_flips
    assert there.outcomes["canonical-order"].answer_flips.flips.estimate == 0
    assert there.outcomes["canonical-order"].ran == 1


@pytest.mark.slow
def test_the_command_audits_a_server(cli, address, questions, tmp_path):
    file, out = tmp_path / "q.jsonl", tmp_path / "out.json"
    file.write_text("\n".join(json.dumps({"question": q.question, "documents": q.documents}) for q in questions))
    arguments = ["--questions", file, "--upstream", f"{address}/v1", "--orders", 2]
    code, output, errors = cli("audit", *arguments, "--json", out, "--html", tmp_path / "a.html")
    assert code == 0, errors
    assert output.startswith(f"Model: tiny ({address}/v1)\n")
    data = json.loads(out.read_text())
    assert data["settings"]["model"] == "tiny" and data["settings"]["upstream"] == f"{address}/v1"
    assert set(data["methods"]) == {"none", "canonical-order", "long-context-reorder"}
    assert data["methods"]["none"]["cost"] is None
    code, _, errors = cli("audit", *arguments, "--methods", "pine")
    assert code == 2 and "the model runs elsewhere" in " ".join(errors.split())
    code, _, errors = cli("audit", *arguments, "--pipeline", "a:b")
    assert code == 2 and "give one of them" in " ".join(errors.split())


def test_a_missing_server_or_model_is_reported(address, questions, monkeypatch):
    monkeypatch.setattr("ragbias_eval.audit.cases.ATTEMPTS", 0)
    with pytest.raises(ServerError, match="does not answer"):
        UpstreamLM("http://127.0.0.1:9", None)
    lm = UpstreamLM(address, "other")
    with pytest.raises(ServerError, match="there is no model 'other'"):
        lm.answer([lm.request(questions[0])], GenerationSettings())
    with pytest.raises(MethodError, match="attention-sorting works inside the model, but the model runs elsewhere"):
        from_questions(lm, questions)[0].request(None, AttentionSorting())
