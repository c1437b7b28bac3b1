"""``ragbias bench`` on the command line."""

import json
from functools import partial

import pytest

from ragbias_eval.runs import read_records


@pytest.fixture
def bench(cli):
    return partial(cli, "bench")


QUICK = ("--model", "tiny", "--task", "tiny", "--documents", "3", "--positions", "0,2", "--limit", "2", "--no-cost")


def test_a_run_prints_figures_and_files_and_resumes_from_yaml(bench, tmp_path):
    out = tmp_path / "run"
    code, output, errors = bench(*QUICK, "--methods", "none,pine", "--out", out, "--json", tmp_path / "summary.json")
    assert (code, errors) == (0, "")
    assert "tiny, 3 documents, model tiny" in output and "flips" in output and "pine" in output
    assert json.loads((tmp_path / "summary.json").read_text()) == json.loads((out / "summary.json").read_text())
    before = (out / "rows.jsonl").read_bytes()
    file = tmp_path / "bench.yaml"
    file.write_text(
        "models: tiny\nmethods: none,pine\nlimit: 2\ntasks: [{name: tiny, documents: [3], positions: [0, 2]}]\n"
    )
    code, _, errors = bench(file, "--no-cost", "--out", out)
    assert (code, errors, (out / "rows.jsonl").read_bytes()) == (0, "", before)


def test_a_report_explains_the_order_only_if_a_method_reorders(bench, cli, tmp_path):
    for methods, has_order in (("none,pine", False), ("none,canonical-order", True)):
        out, page = tmp_path / methods, tmp_path / f"{methods}.html"
        assert bench(*QUICK, "--methods", methods, "--out", out)[0] == 0
        code, output, errors = cli("report", out, "--html", page)
        assert (code, errors) == (0, "")
        assert ("order: agreement" in output) == ("Order: agreement" in page.read_text()) == has_order
        assert "In brackets: 95% intervals." in " ".join(output.split())


def test_a_log_probability_report_explains_only_its_columns(bench, cli, tmp_path):
    assert bench(*QUICK, "--methods", "none,canonical-order", "--measure", "logprob", "--out", tmp_path / "run")[0] == 0
    code, output, errors = cli("report", tmp_path / "run")
    assert (code, errors) == (0, "") and "order: agreement" not in output
    assert "In brackets: 95% intervals." in " ".join(output.split())


def test_judges_are_run_and_reported(bench, cli, tmp_path):
    pair = {"prompt": "Name two.", "chosen": "Two.", "rejected": "No."}
    lines = [{**pair, "subset": subset} for subset in ("alpacaeval-easy", "math-prm")]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    out, summary = tmp_path / "run", tmp_path / "summary.json"
    judge = (
        "--model", "tiny", "--task", "judge", "--data", tmp_path / "pairs.jsonl", "--no-explain", "--no-cost",
        "--methods", "pine",
    )  # fmt: skip
    code, _, errors = bench(*judge, "--out", out, "--json", summary)
    assert (code, errors) == (0, "")
    (result,) = json.loads(summary.read_text())["results"]
    figures = result["methods"]["pine"]["judge"]
    assert (figures["swap_consistency"][0], figures["undecided"]) == (1, 0)
    code, output, errors = cli("report", out)
    assert (code, errors) == (0, "")
    assert {"no", "verdict", "swap-consistent"} <= set(output.split())  # headings wrap


def test_a_folder_with_brackets_is_named_as_it_is(bench, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output, errors = bench(*QUICK, "--methods", "none", "--out", "o[bold]x[", "--json", "[red].json")
    assert (code, errors) == (0, "")
    assert "Written: o[bold]x[/rows.jsonl" in output


def official(path, gold):
    """Write a lost-in-the-middle file with one question whose gold document has this position."""
    texts = [{"title": name, "text": f"{name} is blue.", "isgold": False} for name in ("Ash", "Elm")]
    texts.insert(gold, {"title": "Oak", "text": "Oak is red.", "isgold": True})
    path.write_text(json.dumps({"question": "What is Oak?", "answers": ["red"], "ctxs": texts}) + "\n")
    return path


def test_several_files_may_follow_one_option(bench, tmp_path):
    files = [
        official(tmp_path / f"nq-open-3_total_documents_gold_at_{position}.jsonl", position) for position in (0, 2)
    ]
    rest = ("--model", "tiny", "--methods", "none", "--no-cost", "--no-indices", "--out", tmp_path / "run")
    code, _, errors = bench("--task", "mdqa", "--data", *files, *rest)
    assert (code, errors) == (0, "")
    records = read_records(tmp_path / "run" / "rows.jsonl")
    assert [(record.documents, record.gold_position) for record in records] == [(3, 0), (3, 2)]
    assert len({record.question for record in records}) == 1
    files[0].write_text(files[0].read_text().replace("red", "green"))
    code, _, errors = bench("--task", "mdqa", "--data", *files, *rest)
    assert code == 2 and "contains another run (tasks was" in errors


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ("--task", "tiny", "--methods", "none"),
            "the command line: no model given; name one, e.g. --model smollm2, or models",
        ),
        ((*QUICK, "--methods", "pien"), "did you mean 'pine'"),
        ((*QUICK, "--methods", "pine(strength=1)"), "unknown parameter 'strength'"),
        (QUICK, "the command line: 'methods' is missing"),
        (("--model", "tiny", "--methods", "none"), "the command line: 'tasks' is missing"),
        (("--model", "tiny", "--task", "trivia", "--methods", "none"), "unknown task 'trivia'"),
        (
            ("--model", "tiny", "--task", "judge", "--data", "x", "--documents", "3", "--methods", "none"),
            "judge has no option documents",
        ),
        (("--model", "tiny", "--task", "mdqa", "--data", "missing.jsonl", "--methods", "none"), "missing.jsonl"),
        (
            (*QUICK, "--methods", "none", "--positions", "0,x"),
            "'--positions': must be comma-separated whole numbers from 0 to 9,999",
        ),
        ((*QUICK, "--methods", "none", "--positions", "7"), "position 7 among 3 documents"),
        ((*QUICK, "--methods", "none", "--model", "/no/such/model"), "model '/no/such/model'"),
        (("nothing.yaml",), "nothing.yaml"),
        (("nothing.yaml", "--task", "tiny"), "task: not possible with nothing.yaml"),
        ((*QUICK, "--methods", "none", "--no-explain"), "tiny has no option explain"),
        (("nothing.yaml", "--no-explain"), "explain: not possible with nothing.yaml"),
        (("nothing.yaml", "--no-indices"), "indices: not possible with nothing.yaml"),
    ],
)
def test_bad_input_ends_with_code_2_before_anything_is_written(bench, tmp_path, arguments, complaint):
    code, _, errors = bench(*arguments, "--out", tmp_path / "run")
    assert code == 2 and complaint in errors
    assert len(errors.splitlines()) == 1 and "Traceback" not in errors
    assert not (tmp_path / "run").exists()


def test_a_folder_of_another_kind_ends_with_code_2(bench, tmp_path):
    (tmp_path / "notes.txt").touch()
    code, _, errors = bench(*QUICK, "--methods", "none", "--out", tmp_path)
    assert code == 2 and "contains 'notes.txt' but no run" in errors


@pytest.mark.parametrize("name", ["settings.json", "cost.json"])
def test_the_error_of_a_damaged_file_names_a_remedy(bench, cli, tmp_path, name):
    """Restore or, if the error offers it, remove the file: bench and report then continue."""
    out = tmp_path / "run"
    whole = (*QUICK, "--methods", "none", "--out", out)
    assert bench(*whole)[0] == 0
    file, before = out / name, (out / name).read_bytes() if (out / name).exists() else b"{}"
    for damage in ("{", "[]", "7"):
        file.write_text(damage)
        for command in ((bench, whole), (cli, ("report", out))):
            code, _, errors = command[0](*command[1])
            remedy = "restore the file" if name == "settings.json" else "restore or remove the file"
            assert code == 2 and f"{name} is damaged" in errors and remedy in errors
        file.write_bytes(before)
        assert bench(*whole)[0] == 0
    file.unlink()
    assert cli("report", out)[0] == 0
    code, _, errors = bench(*whole)
    if name == "settings.json":
        assert code == 2 and "contains 'noise.jsonl' but no run of a bench (settings.json); give a new folder" in errors
    else:
        assert code == 0
