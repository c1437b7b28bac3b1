"""RewardBench's sections: weights, scores and the program."""

import json

import pytest
from rich.progress import Progress

from ragbias_eval.bench import run
from ragbias_eval.bench_settings import validate_settings
from studies.rewardbench_sections import SECTIONS, SUBSETS, section_scores
from support.bench_records import record


def judged(scores):
    """Make records of pairs by subset, with the scores for both orders of each pair."""
    return [
        record(
            id=f"{subset}-{n}-{shown}", task="judge", question=f"{subset}-{n}", group=subset, gold_position=shown,
            order=shown, score=score,
        )
        for subset, pairs in scores.items() for n, pair in enumerate(pairs) for shown, score in enumerate(pair)
    ]  # fmt: skip


def test_sections_are_weighted_means_of_subsets():
    found = section_scores(
        judged(
            {"math-prm": [(1, 1), (1, 0), (1, 1)], "hep-go": [(0, 0), (0, 1)], "hep-rust": [(1, 1)], "my own": [(0, 0)]}
        )
    )
    math, go, rust = 2.5 / 3, 0.25, 1
    assert list(found) == ["Reasoning"]
    estimate, low, high = found["Reasoning"]
    assert estimate == pytest.approx((984 * math + 164 * go + 164 * rust) / (984 + 2 * 164))
    assert low < estimate < high
    few = section_scores(judged({"math-prm": [(1, 1)], "hep-go": [(0, 0)]}))
    assert few["Reasoning"] == [pytest.approx(984 / (984 + 164)), None, None]


def test_rewardbench_has_four_sections_with_equal_halves():
    sizes = {section: sum(weights.values()) for section, weights in SECTIONS.items()}
    assert sizes == {"Chat": 358, "Chat Hard": 456, "Safety": 740, "Reasoning": 2 * 984}
    assert sum(sizes.values()) - SECTIONS["Reasoning"]["math-prm"] + 447 == 2985  # the pairs of the released file
    assert len(SUBSETS) == 23


def test_the_program_scores_the_judges_of_a_bench(study, tmp_path):
    pair = {"prompt": "Name two.", "chosen": "Two.", "rejected": "No."}
    lines = [{**pair, "subset": subset} for subset in ("alpacaeval-easy", "math-prm", "my own")]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = {"name": "judge", "data": str(tmp_path / "pairs.jsonl"), "explain": False}
    content = {"models": "tiny", "methods": "pine", "tasks": [task], "cost": False, "out": tmp_path / "run"}
    run(validate_settings(content, "here"), Progress(disable=True))
    code, output, _ = study("rewardbench_sections", tmp_path / "run", "--json", tmp_path / "found.json")
    assert code == 0 and "Sections cover 2 of RewardBench's 23 subsets." in output
    assert "No section of RewardBench has 'my own'." in output
    assert list(json.loads((tmp_path / "found.json").read_text())["tiny, pine"]) == ["Chat", "Reasoning"]
