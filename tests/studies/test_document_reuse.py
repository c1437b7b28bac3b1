"""The effect of document reuse on a pipeline's answers, and the verdict of the gate."""

import json
from dataclasses import replace

import pytest
from audit_questions import question_lines

from ragbias import DebiasedLM, DocumentCache
from ragbias.data.intervals import Interval
from ragbias.data.questions import Question
from ragbias.errors import RunError
from ragbias.methods import AdaptiveParallelEncoding, NoMethod, ParallelContextWindows
from ragbias.prompt import tokenise
from ragbias_eval.audit.cases import from_questions
from studies.document_reuse import APART, PAIRS, ReuseGate, advise, measure

LINES = question_lines(5, documents=4)
QUESTIONS = [Question(line["question"], line["documents"], [line["answer"]]) for line in LINES]
SURE, NONE = Interval(1, 1, 1), Interval(0, 0, 0)


@pytest.fixture(scope="module")
def cases(tiny):
    return from_questions(tiny, QUESTIONS)


def gate(margin=NONE, known=None, pairs=False):
    return ReuseGate("none", 40, SURE, SURE, margin, known, 0.9, pairs)


def test_the_plain_model_agrees_with_itself(cases):
    found = measure(cases, NoMethod())
    assert (found.agreement.estimate, found.known, found.verdict) == (1, NONE, "for")


def test_a_cache_changes_no_figure(cases, tiny):
    lm = DebiasedLM(tiny.model, tiny.tokenizer, "ape", cache=DocumentCache())
    cached = from_questions(lm, QUESTIONS)
    done = []
    found = measure(cached, AdaptiveParallelEncoding(), done.append)
    assert found == measure(cases, AdaptiveParallelEncoding()) and len(done) == len(QUESTIONS)
    assert found.known.estimate != 0 and not found.pairs


def test_what_can_be_cached_is_counted_by_tokens(tiny):
    twice = from_questions(tiny, [*QUESTIONS, replace(QUESTIONS[0], question="Why?")])
    found = measure(twice, ParallelContextWindows())
    prompts = [tokenise(each.recorded.request.prompt.parts, tiny.tokenizer) for each in twice]
    cached_counts = [len(each.ids) - len(each.suffix) for each in prompts]
    assert found.cacheable == sum(cached_counts) / sum(len(each.ids) for each in prompts)


@pytest.mark.parametrize(
    ("found", "verdict", "words"),
    [
        (gate(Interval(0, -0.09, 0.1)), "for", "Reuse pays with ape"),
        (gate(Interval(-0.3, -0.4, -0.1)), "against", "Do not reuse documents with ape"),
        (gate(Interval(-0.1, -0.3, 0.1)), "too few examples", "Give more questions"),
        (gate(Interval(-1, -1, -1), Interval(0.5, 0.1, 0.9)), "for", "changes by +0.50 [+0.10, +0.90] nats"),
        (gate(known=Interval(-0.5, -0.9, -0.1)), "against", "against none"),
    ],
)
def test_known_answers_decide_or_else_reversed_documents(found, verdict, words):
    assert found.verdict == verdict
    assert words in advise({"ape": found})


def test_judges_are_warned():
    assert APART in advise({"ape": gate()}) and PAIRS not in advise({"ape": gate()})
    assert PAIRS in advise({"ape": gate(pairs=True)})


def test_too_few_questions_are_named(cases):
    with pytest.raises(RunError, match="pcw ran on 4 questions; measuring reuse needs 5"):
        measure(cases[:4], ParallelContextWindows())


def test_the_program_prints_and_writes_the_verdict_on_reuse(study, tmp_path):
    questions = tmp_path / "q.jsonl"
    questions.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    options = ("--questions", questions, "--model", "tiny", "--json", tmp_path / "a.json")
    code, output, _ = study("document_reuse", *options)
    found = json.loads((tmp_path / "a.json").read_text())
    assert code == 0 and list(found["methods"]) == ["ape"] and found["methods"]["ape"]["against"] == "none"
    assert "cannot attend to each other" in found["text"] and found["text"] in " ".join(output.split())
    code, _, errors = study("document_reuse", *options, "--methods", "pine")
    assert code == 2 and "pine: documents depend on each other; use e.g. pcw or ape" in errors
