import json
from pathlib import Path
from statistics import fmean

import pytest

from ragbias import DebiasedLM
from ragbias.data.intervals import Interval, share
from ragbias.methods import get
from ragbias.readers import SHIPPED
from ragbias_eval.bench_settings import hash_readers
from studies.reader_grid import average_seeds
from studies.reader_questions import cut_chunks, make_examples
from studies.readers import (
    accuracy,
    compare,
    document_orders,
    generate,
    load_results,
    main,
    measure,
    read_cases,
    render_prompt,
)
from support.readers import write_reader

RESULTS = Path(__file__).parents[2] / "docs" / "results"
STUDIES = RESULTS / "reader-studies.md"
WORDS = [f"word{number}" for number in range(30)]


@pytest.fixture
def file(tmp_path):
    rows = []
    for number in range(6):
        texts = [f"{' '.join(WORDS[index:])} place{number}" if index == 0 else "other text" for index in range(4)]
        ctxs = [{"title": f"T{i}", "text": text, "isgold": i == 0} for i, text in enumerate(texts)]
        rows.append({"question": f"Where is {number}?", "answers": [f"place{number}"], "ctxs": ctxs})
    path = tmp_path / "q.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_gold_documents_are_cut_around_their_answer(file):
    for case in read_cases(file, words=8, count=6):
        assert case.answers[0] in case.documents[0] and len(case.documents[0].split()) < 12
        orders = document_orders(case)
        assert [order.index(case.documents[0]) for order in orders] == [0, 1, 3]


def test_an_interrupted_study_goes_on_and_compares_with_plain(file, tmp_path):
    lm, out = DebiasedLM.from_pretrained("tiny", "none"), tmp_path / "r.json"
    cases = read_cases(file, words=20, count=6)
    methods = {"pcw": "pcw"}
    whole = measure(lm, cases, methods, "bare", load_results(tmp_path / "whole.json", {}, {}), tmp_path / "whole.json")
    measure(lm, cases[:5], methods, "bare", load_results(out, {}, {}), out)
    assert measure(lm, cases, methods, "bare", load_results(out, {}, {}), out) == whole
    assert {
        len(scores) for scores in measure(lm, cases[:5], methods, "bare", load_results(out, {}, {}), out).values()
    } == {5}
    mean, minus_mean, _ = compare(whole)["pcw"]
    assert mean == pytest.approx(compare(whole)["none"][0] + minus_mean.estimate)
    assert compare(whole)["none"][1].estimate == 0
    assert render_prompt(lm, ["a "], "Who?", "bare").suffix == "\nQuestion: Who?\nAnswer:"


def test_results_of_other_settings_are_not_mixed(file, tmp_path, capsys):
    reader = write_reader(tmp_path / "reader", DebiasedLM.from_pretrained("tiny", "none").model)
    command = [str(file), "--out", str(tmp_path / "r.json"), "--model", "tiny", "--questions", "2", "--words", "20"]
    main([*command, "--methods", f"pcw(reader={reader})"])
    main([*command, "--methods", f"pcw,pcw(reader={reader})", "--generate"])
    printed = capsys.readouterr().out
    assert "pcw: " in printed and "share of generated answers" in printed
    with pytest.raises(SystemExit, match=r"r.json contains results with another prompt; give another --out"):
        main([*command, "--methods", "pcw", "--prompt", "bare"])
    write_reader(tmp_path / "reader", DebiasedLM.from_pretrained("tiny", "none").model, seed=1)
    with pytest.raises(SystemExit, match=r"r.json contains results with another .*/reader; give another --out"):
        main([*command, "--methods", f"pcw(reader={reader})"])
    file.write_text(file.read_text().replace("Where is", "Where was"))
    with pytest.raises(SystemExit, match=r"r.json contains results with another file; give another --out"):
        main([*command, "--methods", "pcw"])


def test_generated_answers_are_judged_by_every_accepted_one(file, tmp_path):
    lm, out = DebiasedLM.from_pretrained("tiny", "none"), tmp_path / "r.json"
    cases = read_cases(file, words=20, count=2)
    answers = generate(lm, cases, {"pcw": get("pcw")}, "bare", load_results(out, {}, {}), out)
    assert [len(texts) for texts in answers["none"]] == [3, 3] and [len(texts) for texts in answers["pcw"]] == [1, 1]
    assert json.loads(out.read_text())["answers"] == answers
    judged = [case._replace(answers=["nowhere", "the Hall"]) for case in cases]
    found, words = accuracy(judged, [["It is the hall."], ["a tower"]])
    assert found == [[1.0], [0.0]] and words == 3


def test_distractors_do_not_contain_the_answer():
    rows = []
    for number, topic in enumerate(("copper mine", "river bridge", "glass tower", "stone mill")):
        text = f"The {topic} near the old river is in place{number}. It has stood by the river for many long years."
        ctxs = [{"title": topic, "text": text}]
        rows.append({"question": f"Where near the river is the {topic}?", "answers": [f"place{number}"], "ctxs": ctxs})
    drawn = list(make_examples(rows, 15))
    assert len(drawn) == 4
    for example in drawn:
        gold, *others = example["documents"]
        assert example["answers"][0] in gold and not any(example["answers"][0] in other for other in others)


def test_chunks_cover_a_passage_around_its_answer():
    words = [f"word{number}" for number in range(100)]
    found = cut_chunks(" ".join(words), ["nothing", "word50"], 20)
    assert found[0].split() == words[40:60]
    assert sorted(word for chunk in found for word in chunk.split()) == sorted(words)
    assert cut_chunks("a short text", ["short"], 20) == ["a short text"]


def test_the_page_has_the_figures_of_the_stored_results():
    page = STUDIES.read_text()
    for file, columns in (("passages-10-short", (1, 2)), ("musique", (1,))):
        results = json.loads((RESULTS / "readers" / f"{file}.json").read_text())
        assert results["readers"] == hash_readers(",".join(results["scores"]))["readers"]  # of readers that ship
        table = compare(results["scores"])
        for interval in (table[method][column] for method in table if method != "none" for column in columns):
            assert f"{interval.estimate:+.2f} ({interval.low:+.2f} to {interval.high:+.2f})" in page
    for shipped in ("smollm2-pcw", "smollm2-pine", "smollm2-mixture"):
        receipt = json.loads((SHIPPED / shipped / "reader.json").read_text())["receipt"]
        for gain in ("reader_minus_plain_mean", "reader_minus_plain_best_position"):
            assert "{:+.2f} ({:+.2f} to {:+.2f})".format(*receipt[gain]) in page


def test_the_page_has_the_figures_of_trained_windows():
    page, stored = STUDIES.read_text(), json.loads((RESULTS / "readers" / "windows.json").read_text())
    shown = [line.split("|") for line in page.splitlines() if line.count("|") == 7]
    rows = {tuple(cell.strip() for cell in cells[1:5]): [cell.strip() for cell in cells[5:7]] for cells in shown}
    names = {"distil": "distilled", "ranked": "distilled without labels", "both": "distilled and with known answers"}
    names |= {f"{each}-20": f"{names[each]}, up to 20 passages" for each in ("distil", "ranked")}
    names |= {"shipped": "`smollm2-pcw`, steps of 8", "adapt": "`ragbias adapt` without labels"}
    names |= {"mixture": "mixture without a reader", "both-mixture": "`smollm2-mixture`", "pine": "`smollm2-pine`"}
    for name, run in stored["runs"].items():
        for file, of_file in run["files"].items():
            _, *differences = compare(of_file["scores"])[name]
            count, passages = len(of_file["scores"]["none"]), file.split("-")[2].partition("_")[0]
            expected = [f"{each.estimate:+.2f} ({each.low:+.2f} to {each.high:+.2f})" for each in differences]
            assert rows[names[name], str(run["steps"]), str(count), passages] == expected
            if right := of_file.get("right"):
                shares = " | ".join(f"{fmean(map(fmean, right[each])):.2f}" for each in (name, "none"))
                assert f"| {names[name]} | {count} | {shares} |" in page


def test_the_summary_has_the_figures_of_trained_windows():
    page, stored = (RESULTS / "readers.md").read_text(), json.loads((RESULTS / "readers" / "windows.json").read_text())
    rows = {
        "mixture": "| `mixture` | none |",
        "both-mixture": "| `mixture` | `smollm2-mixture` |",
        "pine": "| `pine` | `smollm2-pine` |",
        "pcw": "| `pcw` | none |",
        "shipped": "| `pcw` | `smollm2-pcw` |",
        "distil": "| `pcw` | distilled |",
        "ranked": "| `pcw` | distilled without labels |",
    }
    for name, row in rows.items():
        measured = stored["runs"]["distil" if name == "pcw" else name]["files"]["nq-open-10_total_documents_gold_at_0"]
        gains = [*compare(measured["scores"])[name][1:], compare(measured["right"])[name][1]]
        cells = " | ".join(f"{gain.estimate:+.2f} ({gain.low:+.2f} to {gain.high:+.2f})" for gain in gains)
        assert f"{row} {len(measured['scores'][name])} | {cells} |" in page
    assert sum(line.startswith("| `") for line in page.splitlines()) == len(rows)


def test_the_page_has_the_figures_of_other_methods():
    page, stored = STUDIES.read_text(), json.loads((RESULTS / "readers" / "methods.json").read_text())
    rates = {"scores": stored["settings"]["learning_rate"], "scores at learning rate 0.001": 0.001}
    for part, rate in rates.items():
        for run, (_, *gains) in compare(average_seeds(stored[part])).items():
            if run != "none":
                method, objective, steps, rank = run.split(":")
                name = "control" if method == "none" else f"`{method}`"
                name += ", without labels" if objective == "free" else ""
                seeds = sum(other.startswith(f"{run}:") for other in stored[part])
                cells = " | ".join(f"{gain.estimate:+.2f} ({gain.low:+.2f} to {gain.high:+.2f})" for gain in gains)
                assert f"| {name} | {steps} | {rank} | {rate} | {seeds} | {cells} |" in page


def test_the_page_has_the_figures_of_other_prompts_and_models():
    page, stored = STUDIES.read_text(), json.loads((RESULTS / "readers" / "others.json").read_text())
    for questions, part in stored.items():
        for run, (_, mean, best) in compare(part["scores"]).items():
            if run != "none":
                method, *training = run.split(":")
                name = "control" if method == "none" else f"`{method}`" if training else f"`{method}`, no reader"
                gains = [mean] if "MuSiQue" in questions else [mean, best]
                cells = " | ".join(f"{gain.estimate:+.2f} ({gain.low:+.2f} to {gain.high:+.2f})" for gain in gains)
                assert f"| {questions} | {name} | {len(part['scores']['none'])} | {cells} |" in page


def test_the_page_has_the_figures_of_the_notes():
    page, stored = STUDIES.read_text(), json.loads((RESULTS / "smollm2-demo" / "results.json").read_text())
    none, found = (stored["results"][name] for name in ("none", stored["settings"]["default"]))
    mean, best = (found[f"minus_plain_{of}"] for of in ("mean", "best"))
    cells = " | ".join("{:+.2f} ({:+.2f} to {:+.2f})".format(*gain) for gain in (mean, best))
    assert f"| `smollm2-mixture`, made-up notes | 290 | 20 | 10 | {cells} |" in page
    assert f"| `smollm2-mixture`, made-up notes | 20 | {found['accuracy'][0]:.2f} | {none['accuracy'][0]:.2f} |" in page


def test_the_page_has_the_figures_of_changes_without_training():
    page, stored = STUDIES.read_text(), json.loads((RESULTS / "readers" / "changes.json").read_text())
    table = compare(stored["scores"])
    rows = {"pcw": "as they are", "turn": "in separate turns", "opening": "after the opening tokens"}
    for name, row in {**rows, "recomputed": "a fifth recomputed"}.items():
        gain = table[name][1]
        assert f"| {row} | {gain.estimate:+.2f} ({gain.low:+.2f} to {gain.high:+.2f}) |" in page


def test_the_page_has_the_figures_of_gold_passages():
    results = json.loads((RESULTS / "readers" / "gold-alone.json").read_text())
    page, receipt = STUDIES.read_text(), results["training"]["receipt"]
    intervals = [share({f"{n:05}": value for n, value in enumerate(results["right"])})]
    gains = [Interval(*receipt[f"reader_minus_plain_{of}"]) for of in ("mean", "best_position")]
    gains += compare(results["scores"])["reader"][1:]
    assert all(f"{each.estimate:+.2f} ({each.low:+.2f} to {each.high:+.2f})" in page for each in gains)
    assert all(f"{each.estimate:.2f} ({each.low:.2f} to {each.high:.2f})" in page for each in intervals)


def test_the_page_has_the_figures_of_judgements():
    page, stored = STUDIES.read_text(), json.loads((RESULTS / "readers" / "llmbar.json").read_text())
    for reader in ("mixture", "pine", "pcw"):
        of_reader = stored["methods"][f"{reader}(reader=smollm2-{reader})"]
        right, gain = of_reader["mean"], of_reader["minus_plain_mean"]
        cells = "{:.2f} ({:.2f} to {:.2f}) | {:+.2f} ({:+.2f} to {:+.2f})".format(*right, *gain)
        assert f"| `smollm2-{reader}` | {cells} | {of_reader['flip_rate'][0]:.0%} |" in page
