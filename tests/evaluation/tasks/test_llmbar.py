import json
import re
from pathlib import Path
from typing import Any

import pytest

from ragbias.errors import DataError
from ragbias.methods import Pine
from ragbias_eval.tasks import LLMBar
from ragbias_eval.tasks.judge import RESPONSE
from ragbias_eval.tasks.task import Case

ENTRIES = [
    {"input": "Name a fruit.", "output_1": "An apple.", "output_2": "A car.", "label": 1},
    {"input": "Name a colour.", "output_1": "Seven.", "output_2": "Green.", "label": 2},
]


def written(tmp_path: Path, entries: Any, name: str = "LLMBar_Natural.json") -> Path:
    path = tmp_path / name
    path.write_text(json.dumps(entries, indent=2))
    return path


def cases(path: Path, **settings: Any) -> list[Case]:
    return list(LLMBar((path,), **settings).cases())


def test_the_labelled_output_is_the_better_one(tmp_path):
    found = cases(written(tmp_path, ENTRIES))
    assert [(case.question, case.gold_position) for case in found] == [
        (f"LLMBar_Natural.json/{entry}", position) for entry in (1, 2) for position in (0, 1)
    ]
    for case, better in zip(found, ["An apple.", "An apple.", "Green.", "Green."], strict=True):
        assert case.documents[case.gold_position or 0] == RESPONSE.format(letter=case.answers[0], text=better)
        assert case.group == "LLMBar_Natural"
    assert found[2].text.startswith("[User Question]\nName a colour.\n\n[The Start of Assistant ")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({**ENTRIES[1], "label": 3}, "1.label: Input should be less than or equal to 2, got 3"),
        ({**ENTRIES[1], "label": "2"}, "1.label: Input should be a valid integer, got '2'"),
        ({**ENTRIES[1], "label": True}, "1.label: Input should be a valid integer, got True"),
        ({**ENTRIES[1], "label": None}, "1.label: Input should be a valid integer, got None"),
        ({name: value for name, value in ENTRIES[1].items() if name != "label"}, "'1.label' is missing"),
        ({**ENTRIES[1], "output_2": 7}, "1.output_2: Input should be a valid string, got 7"),
    ],
    ids=["3", "text", "true", "null", "none", "output"],
)
def test_a_missing_or_wrong_label_is_named_with_file_and_entry(tmp_path, entry, message):
    path = written(tmp_path, [ENTRIES[0], entry])
    with pytest.raises(DataError, match=re.escape(f"{path}: {message}")):
        cases(path)


def test_pairs_are_judged_in_both_orders(tiny, tmp_path):
    task = LLMBar((written(tmp_path, ENTRIES),), explain=False)
    predictions = [answer.prediction for answer in task.answers(tiny, list(task.cases()), Pine(), batch_size=4)]
    assert set(predictions) <= {"chosen", "rejected"} and predictions[::2] == predictions[1::2]
