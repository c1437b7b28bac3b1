"""What holds of all tasks, and how they are made by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ragbias.errors import RunError
from ragbias.evaluation.tasks import TASKS, Judge, KVRetrieval, MultiDocumentQA, TinyQA, make


def test_tasks_are_made_by_name() -> None:
    assert list(TASKS) == ["mdqa", "kv-retrieval", "longbench", "judge", "tiny"]
    assert make("tiny", documents=[5], limit=None) == TinyQA(documents=(5,))
    assert make("kv-retrieval", data=["a.jsonl", Path("b.jsonl")]) == KVRetrieval((Path("a.jsonl"), Path("b.jsonl")))
    assert make("judge", data="a.jsonl", limit=3) == Judge((Path("a.jsonl"),), limit=3)
    assert hash(make("mdqa", data=["a.jsonl"], positions=[0, 4])) == hash(
        MultiDocumentQA((Path("a.jsonl"),), positions=(0, 4))
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mdqna", {}, "unknown task 'mdqna'; known tasks: mdqa, kv-retrieval, longbench, judge, tiny"),
        ("judge", {"data": "a", "orders": 2, "indices": False}, "judge has no option orders, indices; it has data"),
        ("mdqa", {}, "mdqa needs data; name the files"),
        ("mdqa", {"data": []}, "mdqa needs data; name the files"),
        ("tiny", {"data": ["a.jsonl"]}, "tiny has no option data"),
        ("tiny", {"documents": [0]}, r"tiny: documents=\(0,\); expected different whole numbers >= 1"),
        ("tiny", {"documents": []}, r"tiny: documents=\(\); expected different whole numbers >= 1"),
        ("tiny", {"positions": [0, 0]}, r"tiny: positions=\(0, 0\); expected different whole numbers >= 0"),
        ("tiny", {"orders": 0}, "tiny: orders=0; expected a whole number >= 1"),
        ("mdqa", {"data": ["a.jsonl"], "limit": 2.5}, "mdqa: limit=2.5; expected a whole number >= 1"),
        ("tiny", {"limit": True}, "tiny: limit=True; expected a whole number >= 1"),
    ],
)
def test_what_cannot_be_made_is_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RunError, match=message):
        make(name, **options)


@pytest.mark.parametrize("name", ["mdqa", "kv-retrieval", "longbench", "judge"])
def test_the_same_file_twice_and_a_missing_one_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="both named 'a'; drop or rename one"):
        list(make(name, data=[tmp_path / "a.jsonl", tmp_path / "a.jsonl"]).cases())
    with pytest.raises(FileNotFoundError, match=r"a\.jsonl"):
        list(make(name, data=[tmp_path / "a.jsonl"]).cases())
