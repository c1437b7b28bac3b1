"""Properties of all tasks, and their creation by name."""

from collections import defaultdict
from pathlib import Path

import pytest

from ragbias.errors import RunError
from ragbias.methods import Pine
from ragbias_eval.tasks import TASKS, Judge, KVRetrieval, MultiDocumentQA, TinyQA, make_task
from ragbias_eval.tasks.task import Case


def test_tasks_are_made_by_name():
    assert list(TASKS) == ["mdqa", "kv-retrieval", "longbench", "musique", "judge", "llmbar", "tiny"]
    assert make_task("tiny", documents=[5], limit=None) == TinyQA(documents=(5,))
    assert make_task("kv-retrieval", data=["a.jsonl", Path("b.jsonl")]) == KVRetrieval(
        (Path("a.jsonl"), Path("b.jsonl"))
    )
    assert make_task("judge", data="a.jsonl", limit=3) == Judge((Path("a.jsonl"),), limit=3)
    assert hash(make_task("mdqa", data=["a.jsonl"], positions=[0, 4])) == hash(
        MultiDocumentQA((Path("a.jsonl"),), positions=(0, 4))
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mdqna", {}, "unknown task 'mdqna'; known tasks: mdqa, kv-retrieval, longbench, musique, judge, llmbar"),
        (
            "judge",
            {"data": "a", "orders": 2, "indices": False},
            "judge has no option orders, indices; its options are data",
        ),
        ("mdqa", {}, "mdqa needs data; name the files"),
        ("mdqa", {"data": []}, "mdqa needs data; name the files"),
        ("tiny", {"data": ["a.jsonl"]}, "tiny has no option data"),
        ("tiny", {"documents": [0]}, "tiny: documents.0: Input should be greater than or equal to 1, got 0"),
        ("tiny", {"documents": []}, "tiny: documents: Value should have at least 1 item"),
        ("tiny", {"positions": [0, 0]}, r"tiny: positions: one value is given twice, got \(0, 0\)"),
        ("tiny", {"orders": 0}, "tiny: orders: Input should be greater than or equal to 1, got 0"),
        ("mdqa", {"data": ["a.jsonl"], "limit": 2.5}, "mdqa: limit: Input should be a valid integer, got 2.5"),
        ("tiny", {"limit": True}, "tiny: limit: Input should be a valid integer, got True"),
        ("tiny", {"seed": 0.5}, "tiny: seed: Input should be a valid integer, got 0.5"),
        ("mdqa", {"data": "a", "indices": 0}, "mdqa: indices: Input should be a valid boolean, got 0"),
        ("mdqa", {"data": "a", "shorten": 2}, "mdqa: shorten: Input should be greater than or equal to 5, got 2"),
        ("kv-retrieval", {"data": "a", "shorten": 40}, "kv-retrieval has no option shorten"),
        ("longbench", {"data": "a", "indices": "no"}, "longbench: indices: Input should be a valid boolean, got 'no'"),
    ],
)
def test_what_cannot_be_made_is_named(name, options, message):
    with pytest.raises(RunError, match=message):
        make_task(name, **options)


@pytest.mark.parametrize("name", ["mdqa", "kv-retrieval", "longbench", "musique", "judge", "llmbar"])
def test_the_same_file_twice_and_a_missing_one_are_refused(name, tmp_path):
    with pytest.raises(RunError, match="both named 'a'; remove or rename one"):
        list(make_task(name, data=[tmp_path / "a.jsonl", tmp_path / "a.jsonl"]).cases())
    with pytest.raises(FileNotFoundError, match=r"a\.jsonl"):
        list(make_task(name, data=[tmp_path / "a.jsonl"]).cases())


KV = {"ordered_kv_records": [[f"k{n}", f"v{n}"] for n in range(6)], "key": "k2", "value": "v2"}
PASSAGES = {
    "dataset": "musique",
    "input": "Who?",
    "answers": ["me"],
    "context": "\n\n".join(f"Passage {n}:\n{name} sits." for n, name in enumerate(("Owl", "Cat", "Hen", "Fox"), 1)),
}
OFFICIAL = {
    "question": "Who?",
    "answers": ["me"],
    "ctxs": [{"title": f"T{n}", "text": f"Text {n}.", "isgold": n == 2} for n in range(5)],
}
ORACLE = [
    {"question": f"Who {n}?", "answers": [f"me{n}"], "ctxs": [{"title": f"T{n}", "text": f"me{n}", "isgold": True}]}
    for n in range(6)
]


@pytest.mark.parametrize(
    ("name", "examples", "options", "drawn"),
    [
        ("kv-retrieval", [KV], {}, False),
        ("longbench", [PASSAGES], {"indices": False}, False),
        ("musique", [OFFICIAL], {"shorten": 5}, False),
        ("mdqa", [OFFICIAL], {"indices": False}, False),
        ("mdqa", ORACLE, {"indices": False, "documents": [4], "positions": [0], "limit": 1}, True),
        ("tiny", [], {"documents": [4], "positions": [0], "limit": 1}, True),
    ],
)
@pytest.mark.parametrize("seeds", [(0,), (7,), (0, 7)])
def test_cases_that_differ_in_order_only_are_one_group(write, name, examples, options, drawn, seeds):
    """Same groups as for ``flips``: an order and its shuffles belong together, other sets of documents do not."""
    data = {"data": [write("a.jsonl", *examples)]} if examples else {}
    groups: dict[tuple[str, int, int], list[Case]] = {}
    found = {
        case.id: case for seed in seeds for case in make_task(name, **data, **options, orders=3, seed=seed).cases()
    }
    for case in found.values():
        groups.setdefault((case.question, len(case.documents), case.seed), []).append(case)
    sets = {frozenset(each.documents) for each in found.values()}
    assert len(groups) == len(sets) == (len(seeds) if drawn else 1)
    for own in groups.values():
        assert len({frozenset(case.documents) for case in own}) == 1
        assert {case.order for case in own} == {0, 1, 2}
        assert len(own) == (3 if drawn else 1 + 2 * len(seeds))


@pytest.mark.parametrize(
    ("name", "examples", "options"),
    [
        ("mdqa", ORACLE, {"documents": [6], "positions": [0, 3, 5], "orders": 2, "limit": 2, "indices": False}),
        ("longbench", [PASSAGES, {**PASSAGES, "dataset": "2wikimqa"}], {"orders": 4, "indices": False}),
        ("kv-retrieval", [KV], {"positions": [0, 1, 3], "orders": 2}),
    ],
)
def test_pine_without_indices_is_bit_identical_in_any_order(tiny, write, name, examples, options):
    task = make_task(name, data=[write("a.jsonl", *examples)], **options)
    predictions = defaultdict(list)
    for case in task.cases():
        settings = dict(documents=case.documents, method=Pine(), max_new_tokens=6, logprobs=True)
        output = tiny.generate(task.prompt(tiny, case), **settings)
        assert output.report.method_ran == "pine"
        predictions[case.question].append((output.text, *map(float.hex, output.logprobs)))
    assert len(predictions) == len(examples[:2]) and min(map(len, predictions.values())) > 3
    assert [len(set(answers)) for answers in predictions.values()] == [1] * len(predictions)
