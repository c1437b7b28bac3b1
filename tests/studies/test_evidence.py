"""Evidence comes from summaries, and its file round-trips."""

import json
import re
from dataclasses import asdict

import pytest

from ragbias_eval.measures.aggregates import summarise_records
from studies.advice import KINDS, describe_default, format_heading, give_reasons, recommend_all
from studies.evidence import as_json, extract_evidence
from studies.publish import EVIDENCE, RESULTS, ROOT
from support.bench_records import logprobs_with

POSITIONS = (0, 4, 9)
SHIFTS = {
    "none": {0: 0.0, 4: -2.0, 9: 1.0},
    "pine(order=input)": dict.fromkeys(POSITIONS, -0.6),
    "pine": dict.fromkeys(POSITIONS, 0.5),
}
COST = {"tiny|mdqa|10": {label: {"prefill_ratio": [1.257, 1.2, 1.3]} for label in SHIFTS}}


@pytest.fixture(scope="module")
def cases():
    return extract_evidence("made-up", summarise_records(logprobs_with(SHIFTS, 20, task="mdqa"), COST))


def test_a_summary_gives_each_method_against_the_plain_one(cases):
    (case,) = cases
    assert (case.study, case.model, case.task, case.documents, case.measure) == (
        "made-up", "tiny", "mdqa", 10, "logprob"
    )  # fmt: skip
    assert case.questions == 20 and case.gap[0] == pytest.approx(3, abs=0.2) and case.gap[1] > 0
    assert list(case.effects) == ["pine(order=input)", "pine"]
    pine = case.effects["pine"]
    assert pine.invariant and not case.effects["pine(order=input)"].invariant and pine.cost == 1.26
    for figure, expected in ((pine.mean, 0.83), (pine.worst, 2.5), (pine.best, -0.5)):
        assert figure[1] < figure[0] < figure[2] and figure[0] == pytest.approx(expected, abs=0.1)
    assert recommend_all(cases)[0].method == "pine"


def test_the_file_holds_recommendations_with_cases_and_words(cases):
    found = recommend_all(cases)
    written = json.loads(as_json(found))
    assert written["default"] == describe_default(found)
    assert written["advice"] == [
        json.loads(
            json.dumps({**asdict(each), "heading": format_heading(each), "reasons": list(give_reasons(each))}),
            parse_float=lambda text: round(float(text), 3),
        )
        for each in found
    ]


def test_figures_without_interval_or_comparison_are_no_evidence():
    assert extract_evidence("few", summarise_records(logprobs_with(SHIFTS, 4))) == []
    assert extract_evidence("alone", summarise_records(logprobs_with({"pine": {0: 0.5}}, 20))) == []
    assert extract_evidence("plain", summarise_records(logprobs_with({"none": {0: 0.5}}, 20))) == []


def test_the_package_brings_evidence_of_real_models_only():
    advice = json.loads((ROOT / EVIDENCE).read_text())["advice"]
    cases = [case for each in advice for case in each["cases"]]
    assert cases and all(case["model"] != "tiny" and case["task"] in sum(KINDS.values(), ()) for case in cases)


def test_evidence_has_the_figures_of_the_studies_tables():
    page = (ROOT / RESULTS / "models.md").read_text()
    _, evidence, studies = re.split("<!-- evidence -->|<!-- /evidence -->", page)
    figures = re.findall(r"[+-]\S+ \(\S+ to \S+\)", evidence)
    assert len(figures) > 10 and [figure for figure in figures if figure not in studies] == []
