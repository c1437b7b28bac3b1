"""Publishing a run of the embedded model, its tables, and the results in the repository."""

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest

from ragbias.errors import DataError, RunError
from ragbias.methods import DEFAULT_METHOD
from ragbias_eval.bench_settings import read_settings
from ragbias_eval.report.combine import summarise_runs
from ragbias_eval.runs import as_json_lines, read_records, read_run
from studies import stored_runs
from studies.pictures import DEMO, draw_pictures
from studies.publish import EVIDENCE, MARKED, PAGES, ROOT, SETTINGS, make_files, publish, study_names
from studies.study_tables import add_costs, format_interval
from support.bench_records import silently

NAME = "tiny-4"
YAML = """# A study of the embedded model,
# and of nothing else:
#   ragbias bench tiny-4.yaml
models: tiny
methods: none,pine,canonical-order
measure: accuracy,logprob
tasks: [{name: tiny, documents: [4], positions: [0, 3]}]
limit: 6
invariant_once: true
cost: false
out: /nowhere/else
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder of runs, one of them finished."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "run.yaml").write_text(YAML)
    silently(read_settings(folder / "run.yaml", {"out": folder / NAME}))
    return folder


@pytest.fixture
def root(tmp_path):
    """The files of a clone that publishing writes: pages with only marks."""
    for path in (*PAGES, EVIDENCE, SETTINGS / f"{NAME}.yaml"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("".join(MARKED.sub(r"\1\3", (ROOT / path).read_text())) if path in PAGES else YAML)
    return tmp_path


def test_a_stored_run_gives_the_same_summary_again(runs, root, capsys):
    publish(runs, root=root)
    assert f"{NAME}: stored" in capsys.readouterr().out
    folder = root / "docs/results" / NAME
    assert sorted(path.name for path in folder.iterdir()) == [
        "noise.jsonl.gz", "report.html", "rows.jsonl.gz", "settings.json", "summary.json"
    ]  # fmt: skip
    assert read_records(folder / "rows.jsonl.gz") == read_records(runs / NAME / "rows.jsonl")
    summary, again = stored_runs.read_stored(folder), json.loads(json.dumps(summarise_runs([read_run(folder)])))
    assert {**again, "hours": summary["hours"]} == summary
    measured = [each for each in read_records(folder / "rows.jsonl.gz") if not each.copied]
    assert len(measured) < len(read_records(folder / "rows.jsonl.gz")) and 0 <= summary["hours"] < 1
    texts = (folder / "settings.json").read_text() + (folder / "report.html").read_text()
    assert str(runs) not in texts and f'"out": "{NAME}"' in texts
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    publish(runs, root=root)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_the_start_pages_show_the_picture_of_the_demo(monkeypatch):
    drawn = {}
    monkeypatch.setattr("studies.pictures.save_pair", lambda figure, path: drawn.update({path: figure}))
    draw_pictures(ROOT)
    settings = json.loads((ROOT / DEMO).read_text())["settings"]
    default = settings["default"]
    (axis,) = drawn[ROOT / "docs/bias"].axes
    curves = [line.get_label() for line in axis.lines if line.get_marker() != "None"]
    assert curves == ["none (plain smollm2)", f"{default} (order-invariant)"]
    for page in ("README.md", "docs/index.md"):
        text = " ".join((ROOT / page).read_text().split())
        assert f"(SmolLM2, {settings['questions']} questions" in text and "95% intervals" in text
        assert re.findall(r"`([\w-]+)`", text.split("95% intervals")[1])[:2] == re.findall(r"[\w-]+", default)[::2]


def test_figures_without_an_interval_are_left_out():
    assert format_interval([0.714, 0.62, 0.79], prefix="x") == "x0.71 (x0.62 to x0.79)"
    assert format_interval([0.714, None, None]) == format_interval(None) == "-"


def test_the_page_holds_only_summary_figures_with_intervals(runs, root):
    publish(runs, root=root)
    page = (root / "docs/results/models.md").read_text()
    (result,) = stored_runs.read_stored(root / "docs/results" / NAME)["results"]
    for figures in (result["methods"]["pine"], result["methods"]["pine"]["logprob"]):
        assert format_interval(figures["minus_plain"]["mean"], "+.2f") in page
    assert f"the [report with curves]({NAME}/report.html) and the [settings](real/{NAME}.yaml)" in page
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith(("| pine", "| canonical"))]
    assert len(rows) == 4
    assert page.count(f"| {NAME} | accuracy | 6 |") == page.count(f"| {NAME} | log-probability | 6 |") == 2
    assert {line.count("|") for line in page.splitlines() if line.startswith("| ")} <= {8, 7, 6, 5}
    assert f"### {NAME}: tiny, 4 documents, model tiny: log-probability of the gold answer" in page
    assert "\nA study of the embedded model, and of nothing else. See the [report with curves]" in page
    assert "| prefill |" not in page.split("### ")[1]  # the cost was not measured with an interval
    assert "copied to the other orders: canonical-order, pine." in page


def test_evidence_and_advice_need_only_the_stored_summary(runs, root, tmp_path):
    publish(runs, root=root)
    one_fact = json.loads((root / EVIDENCE).read_text())["advice"][0]
    assert [(case["study"], case["measure"], case["questions"]) for case in one_fact["cases"]] == [
        (NAME, "accuracy", 6), (NAME, "logprob", 6)
    ]  # fmt: skip
    assert "| one fact in one passage | " in (root / "docs/results/models.md").read_text()
    assert f"| {NAME} | accuracy | 6 | " in (root / "docs/results/models.md").read_text()
    before = {path: (root / path).read_text() for path in make_files(root)}
    publish(tmp_path / "no runs", root=root)
    assert {path: (root / path).read_text() for path in before} == before


@pytest.fixture
def unfinished(runs, tmp_path):
    """The run after five questions and a part of the sixth."""
    folder = tmp_path / "runs" / NAME
    shutil.copytree(runs / NAME, folder)
    (folder / "summary.json").unlink()
    records = read_records(folder / "rows.jsonl")
    (folder / "rows.jsonl").write_text(as_json_lines(records[:-2]))
    return folder.parent


def test_an_unfinished_run_is_stored_on_demand_by_question(unfinished, root, capsys):
    publish(unfinished, root=root)
    assert f"{NAME}: not finished" in capsys.readouterr().out and not (root / "docs/results" / NAME).exists()
    publish(unfinished, unfinished=True, root=root)
    records = read_records(root / "docs/results" / NAME / "rows.jsonl.gz")
    assert len(records) == 5 * 3 * 2 and len({each.question for each in records}) == 5
    assert "The run is not finished; these are its first 5 questions." in (root / PAGES[0]).read_text()


def test_a_finished_run_without_answers_or_summary_is_refused(unfinished, runs, root):
    shutil.copy(runs / NAME / "summary.json", unfinished / NAME)
    with pytest.raises(RunError, match=rf"{NAME} does not hold all answers of its summary.json; remove"):
        publish(unfinished, root=root)
    (unfinished / NAME / "summary.json").write_text('{"results": [')
    with pytest.raises(DataError, match=r"summary\.json is damaged \(JSONDecodeError"):
        publish(unfinished, root=root)
    assert not (root / "docs/results" / NAME).exists()


def test_too_few_questions_and_too_many_bytes_are_refused(unfinished, runs, root, monkeypatch):
    records = read_records(unfinished / NAME / "rows.jsonl")
    first = sorted({each.question for each in records})[:4]
    (unfinished / NAME / "rows.jsonl").write_text(as_json_lines(each for each in records if each.question in first))
    with pytest.raises(RunError, match="4 questions are too few for intervals; at least 5 are needed"):
        publish(unfinished, unfinished=True, root=root)
    monkeypatch.setattr(stored_runs, "LARGEST", 1000)
    with pytest.raises(RunError, match=rf"{NAME} would take [\d,]+ bytes of at most 1,000; split the study"):
        publish(runs, root=root)
    assert not (root / "docs/results" / NAME).exists()


def test_a_run_with_other_settings_than_its_study_is_refused(runs, root):
    (root / SETTINGS / f"{NAME}.yaml").write_text(YAML.replace("limit: 6", "limit: 7").replace("cost: false", ""))
    with pytest.raises(
        RunError, match=rf"{NAME} is not a run of .*{NAME}\.yaml: limit was 6 and is 7 now; run the study"
    ):
        publish(runs, root=root)


def test_costs_are_those_of_another_study_of_the_same_prompts():
    def summary(documents, **cost):
        methods = {label: dict(cost) for label in ("none", "pine")}
        return {"results": [{"model": "m", "task": "t", "documents": documents, "methods": methods}]}

    timed = {"prefill_ratio": [2, 1, 3]}
    found = add_costs({"a": summary(10), "b": summary(10, cost=timed), "c": summary(20)})
    costs = [found[name]["results"][0]["methods"]["pine"].get("cost") for name in "abc"]
    assert costs == [timed, timed, None]


# what the repository keeps


def test_pages_and_evidence_match_the_stored_summaries():
    for path, text in make_files().items():
        assert (ROOT / path).read_text() == text, f"{path}: run `make results-page`"


def test_every_mark_is_there():
    marks = [mark[2] for path in PAGES for mark in MARKED.finditer((ROOT / path).read_text())]
    assert sorted(marks) == ["advice", "calibrations", "evidence", "studies"]
    assert f"The default method, {DEFAULT_METHOD}, " in (ROOT / "docs/results/models.md").read_text()


@pytest.mark.parametrize("name", study_names())
def test_study_settings_are_read_and_the_stored_part_is_small(name):
    assert read_settings(ROOT / SETTINGS / f"{name}.yaml", {"out": Path("runs") / name}).models
    folder = ROOT / "docs/results" / name
    if folder.is_dir():
        size = sum(path.stat().st_size for path in folder.iterdir())
        assert size <= stored_runs.LARGEST and stored_runs.answers_size(folder.parent) <= stored_runs.LARGEST
        rows = gzip.decompress((folder / "rows.jsonl.gz").read_bytes()).count(b"\n")
        (result, *_) = results = stored_runs.read_stored(folder)["results"]
        assert result["model"] != "tiny"
        assert rows >= sum(method["rows"] for each in results for method in each["methods"].values())
