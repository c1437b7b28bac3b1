"""Bench configurations from YAML and from command-line options."""

from pathlib import Path

import pytest

from ragbias.errors import RunError
from ragbias_eval.bench import BenchPlan
from ragbias_eval.bench_settings import read_settings, validate_settings

WHOLE = """
models: tiny
methods: [none, "attention-sorting(rounds=2)"]
tasks:
  - tiny
  - name: mdqa
    data: questions.jsonl
    positions: [0, 4]
seeds: [1, 2]
limit: 3
out: results
"""


def written(folder, text):
    file = folder / "bench.yaml"
    file.write_text(text)
    return file


def test_the_command_line_overrides_settings_of_a_file(tmp_path):
    settings = read_settings(written(tmp_path, WHOLE), {"limit": 5, "dtype": "float32"})
    assert (settings.models, settings.methods) == (("tiny",), "none,attention-sorting(rounds=2)")
    assert [task.name for task in settings.tasks] == ["tiny", "mdqa"]
    assert settings.tasks[1].options == {"data": "questions.jsonl", "positions": [0, 4]}
    assert (settings.seeds, settings.limit, settings.dtype, settings.batch_size) == ((1, 2), 5, "float32", 8)
    made = settings.tasks[1].make(2, 5)
    assert (made.data, made.positions, made.seed, made.limit) == ((Path("questions.jsonl"),), (0, 4), 2, 5)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("speed: 3", "unknown key 'speed'; known: models, methods"),
        ("batch_size: 0", "batch_size: Input should be greater than or equal to 1, got 0"),
        ("seeds: [1, 1]", "one value is given twice"),
        ("tasks: [{name: tiny, documets: [5]}]", "tasks.0: tiny has no option documets"),
        ("tasks: [{name: trivia}]", "tasks.0: unknown task 'trivia'"),
        (
            "batch_size: 99999999999999999999999999",
            "batch_size: Input should be less than or equal to 1024, got 99999999",
        ),
        ("seeds: [-1]", "seeds.0: Input should be greater than or equal to 0, got -1"),
        ("limit: 1e26", "limit: .*valid integer"),
        ("tasks: [{name: tiny, limit: -1}]", "tiny: limit: Input should be greater than or equal to 1, got -1"),
        ("tasks: [{name: tiny, documents: ten}]", "tasks.0: tiny: documents.0: .*valid integer, got 'ten'"),
        ("tasks: [{name: tiny, positions: {0: 1}}]", "tasks.0: tiny: positions: .*valid tuple, got {0: 1}"),
        ("tasks: [{name: tiny, documents: [[3]]}]", "tasks.0: tiny: documents.0: .*valid integer"),
        ("tasks: [{name: tiny, orders: [2]}]", "tiny: orders: .*valid integer, got \\[2\\]"),
        ("tasks: [{name: tiny, seed: [1]}]", "tasks.0: tiny: seed: .*valid integer"),
        ("tasks: [{name: tiny, limit: yes}]", "tasks.0: tiny: limit: .*valid integer, got True"),
        ("tasks: [{name: mdqa, data: a, indices: 'false'}]", "tasks.0: mdqa: indices: .*valid boolean, got 'false'"),
        ("tasks: [{name: mdqa, data: 5}]", "tasks.0: mdqa: data.0: .*path"),
        ("tasks: [{name: mdqa, data: {a: b}}]", "tasks.0: mdqa: data: .*tuple"),
        ("tasks: [{name: [tiny]}]", "tasks.0.name: .*valid string"),
        ("limit: yes", "limit: .*valid integer, got True"),
        ("limit: '3'", "limit: .*valid integer, got '3'"),
        ("cost: 'no'", "cost: .*valid boolean, got 'no'"),
        ("seeds: [true]", "seeds.0: .*valid integer, got True"),
        ("seeds: 2024-13-45", "is not readable YAML: month must be in 1..12"),
        ("models: {tiny: 1}", "models: .*tuple, got"),
        ("5: 3", "5: Keys should be strings"),
        ("seeds: " + "[" * 3000, "recursion depth"),
        ("tasks: []", "tasks: Tuple should have at least 1 item"),
        ("methods: {pine: 1}", "methods: .*valid string"),
        ("out: [", "is not readable YAML"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_file(tmp_path, line, complaint):
    key = line.partition(":")[0]
    basis = {"models": "models: tiny", "methods": "methods: none", "tasks": "tasks: [tiny]", "out": f"out: {tmp_path}"}
    file = written(tmp_path, "\n".join([line, *(other for name, other in basis.items() if name != key)]))
    with pytest.raises(RunError, match=rf"bench\.yaml.*{complaint}"):
        read_settings(file, {})


def test_a_single_number_or_file_is_a_list_of_one(tmp_path):
    text = "models: tiny\nmethods: none\nout: x\nseeds: 3\n"
    text += "tasks: [{name: mdqa, data: a.jsonl, documents: 10, positions: 4}]"
    settings = read_settings(written(tmp_path, text), {})
    made = settings.tasks[0].make(3, None)
    assert (settings.seeds, made.documents, made.positions, made.data) == ((3,), (10,), (4,), (Path("a.jsonl"),))


@pytest.mark.parametrize("text", ["", "just words", "- tiny"])
def test_a_file_without_keys_is_refused(tmp_path, text):
    with pytest.raises(RunError, match=r"bench\.yaml: expected keys and values"):
        read_settings(written(tmp_path, text), {})


def test_what_is_missing_is_named():
    with pytest.raises(RunError, match="the command line: 'methods' is missing; 'out' is missing"):
        validate_settings({"models": "tiny", "tasks": ["tiny"]}, "the command line")


def test_a_bench_without_a_model_says_how_to_name_one():
    with pytest.raises(RunError, match="here: no model given; name one, .*; expected 'tiny', 'smollm2'"):
        validate_settings({"methods": "none", "tasks": ["tiny"], "out": "x"}, "here")


def plan(**changes):
    return BenchPlan(
        validate_settings(
            {"models": "tiny", "methods": "none", "tasks": ["tiny"], "limit": 2, "out": "x", **changes}, "here"
        )
    )


def test_cases_run_in_batches_by_seed_and_some_again_alone():
    task = {"name": "tiny", "documents": [3, 4], "positions": [0, 2]}
    units = list(plan(tasks=[task], seeds=[1, 2], batch_size=3).units())
    answers = [unit for unit in units if not unit.noise]
    assert [len(unit.cases) for unit in answers] == [3, 3, 2, 3, 3, 2]
    assert [unit.task.seed for unit in answers] == [1, 1, 1, 2, 2, 2]
    again = [unit for unit in units if unit.noise]
    assert units == answers + again and {len(unit.cases) for unit in again} == {1}
    first = [unit.cases[0] for unit in again if unit.task.seed == 1]
    assert [(len(case.documents), case.gold_position) for case in first] == [(3, 0), (3, 0), (4, 0), (4, 0)]


def test_at_most_fifty_questions_are_repeated():
    units = list(plan(tasks=[{"name": "tiny", "documents": [3], "positions": [0]}], limit=60).units())
    assert sum(unit.noise for unit in units) == 50


def test_a_case_that_two_tasks_share_is_refused():
    with pytest.raises(RunError, match="has the case .* twice"):
        plan(tasks=["tiny", {"name": "tiny", "positions": [0]}]).keys()


@pytest.mark.parametrize(
    "name",
    [
        "ablation/tiny",
        "ablation/scale",
        "real/smollm2-10",
        "real/smollm2-20",
        "real/smollm2-10-accuracy",
        "real/smollm2-musique",
    ],
)
def test_the_settings_of_published_results_can_be_run(tmp_path, name):
    file = Path(__file__).parents[3] / "docs" / "results" / f"{name}.yaml"
    plan = BenchPlan(read_settings(file, {"out": tmp_path / "run"}))
    (methods,) = plan.methods.values()
    assert "none" in methods and "pine" in methods
