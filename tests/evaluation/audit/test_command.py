"""``ragbias audit`` from file to verdict."""

import json
import re
import sys

import pytest
from audit_questions import question_lines, write


@pytest.mark.serial
@pytest.mark.slow
def test_audit_detects_the_bias_of_tiny_and_pine_removes_it(tmp_path, cli):
    questions = write(tmp_path / "q.jsonl", question_lines(10, documents=20, seed=1))
    out, html = tmp_path / "a.json", tmp_path / "a.html"
    code, output, _ = cli(
        "audit", "--model", "tiny", "--questions", questions, "--orders", 3, "--json", out, "--html", html
    )
    assert code == 0 and "You have the problem" in output
    assert output.startswith("Model: tiny\n")
    # three methods answer ten questions in three orders, and once again
    assert 0 < output.index("measuring the cost") < output.index("120/120")
    found = json.loads(out.read_text())
    assert next(iter(found)) == "model" and found["model"] == "tiny"
    assert found["verdict"] == "problem"
    none, pine = found["methods"]["none"], found["methods"]["pine"]
    assert none["flips"][0] >= none["floor"][2] + 0.1
    assert none["right_flips"][0] >= none["right_floor"][2] + 0.1
    assert none["floor"][0] == 0
    assert "right in one order and wrong in another" in found["flip"]
    assert " as retrieved '" in output
    assert list(found["methods"]) == ["none", "segmented", "pine"] and "segmented" in output
    assert (pine["verdict"], pine["flips"][0]) == ("no problem", 0)
    assert [part[0] for part in pine["preference"]["excess"]] == [0] * 5
    assert len(set(pine["accuracy_by_order"])) == 1
    assert pine["changed"][0] > 0
    assert none["cost"]["prefill_ratio"] == [1, 1, 1] and pine["cost"]["prefill_ratio"][0] > 1  # PINE sorts per query
    assert len(none["answers"]) == 10 and {len(each) for each in none["answers"]} == {3}
    text = html.read_text()
    assert "You have the problem" in text
    assert "<h1>tiny: does the order of the documents matter?</h1>" in text
    assert re.findall(r"\b(?:src|href)=", text) == []  # nothing is fetched


PIPELINE = """
import json
from pathlib import Path

from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_ragbias import ChatRagBias

lines = [json.loads(line) for line in Path("q.jsonl").read_text().splitlines()]
documents = {line["question"]: "\\n\\n".join(line["documents"]) for line in lines}
prompt = ChatPromptTemplate.from_messages([("system", "Context:\\n\\n{context}"), ("human", "{question}")])
chain = (
    RunnableLambda(lambda question: {"context": documents[question], "question": question})
    | prompt
    | ChatRagBias(model_id="tiny", method="pine", max_tokens=8, segmenter="\\n\\n")
)
"""


def test_an_invariant_pipeline_passes(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    lines = [{name: line[name] for name in ("question", "documents")} for line in question_lines(5, documents=8)]
    write(tmp_path / "q.jsonl", lines + lines[:1])
    (tmp_path / "invariant_pipeline.py").write_text(PIPELINE)
    options = ("--questions", "q.jsonl", "--pipeline", "invariant_pipeline:chain", "--methods", "pine", "--orders", 3)
    code, output, _ = cli("audit", *options, "--json", "a.json")
    assert code == 0 and output.startswith("Model: tiny (invariant_pipeline:chain)\n")
    assert "\n1 repeated questions left out\n" in output
    text = " ".join(output.split())
    assert "With pine, which your pipeline already uses, you do not have this problem" in text
    assert "To learn whether you still need pine" in text and "worth its cost" not in text
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["verdict"] == "no problem" and found["recommended"] is None
    assert list(found["methods"]) == ["as is: pine"]
    assert found["methods"]["as is: pine"]["flips"][0] == 0
    assert found["methods"]["as is: pine"]["accuracy_by_order"] is None


GOOD = '{"question": "q", "documents": ["a", "b"]}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "contains no"),
        (f"{GOOD}\n\n{{", "q.jsonl, line 3"),
        (f'{GOOD}\n{{"documents": ["a", "b"]}}', "line 2: 'question' is missing"),
        (f'{GOOD}\n{{"question": "q"}}', "line 2: 'documents' is missing"),
        ('{"question": "q", "documents": ["a"]}', "line 1: 1 document; give two or more"),
        ('{"question": " ", "documents": ["a", "b"]}', "line 1: question: is empty"),
        ('{"question": "q", "documents": ["a", " "]}', "line 1: documents.1: is empty"),
        ('{"question": "q", "documents": ["a", 7]}', "line 1"),
        ('{"question": "q", "documents": ["a", "b"], "gold": 2}', "line 1: 'gold' is 2 with 2 documents"),
        (
            "\n".join(GOOD.replace('"q"', f'"q{index}"') for index in range(4)),
            "4 different questions with two or more documents",
        ),
    ],
)
def test_bad_questions_end_with_code_2_and_name_the_line(tmp_path, cli, text, words):
    path = tmp_path / "q.jsonl"
    path.write_text(text)
    code, _, errors = cli("audit", "--model", "tiny", "--questions", path)
    assert code == 2 and words in errors


def test_repeated_questions_count_once(tmp_path, cli):
    path = tmp_path / "q.jsonl"
    path.write_text("\n".join([GOOD] * 9))
    code, output, errors = cli("audit", "--model", "tiny", "--questions", path)
    assert (code, output) == (2, "Model: tiny\n")
    assert "1 different questions with two or more documents; an interval needs at least 5, better 100" in errors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "tiny", "--questions", "/nonexistent.jsonl"], "/nonexistent.jsonl"),
        ([], "no model given; name one, e.g. --model smollm2, or give --pipeline or --upstream"),
        (["--model", "tiny", "--methods", "pin"], "unknown method 'pin'; did you mean 'pine'?"),
        (["--pipeline", "no_such_module_here:chain"], "cannot be loaded"),
        (["--pipeline", "json:__name__"], "cannot be called"),
        (["--model", "/nonexistent/model"], "/nonexistent/model"),
        (["--orders", "1"], "--orders"),
        (["--html", "/nonexistent/a.html"], "/nonexistent is not a folder"),
    ],
)
def test_bad_arguments_end_with_code_2(tmp_path, monkeypatch, cli, arguments, words):
    monkeypatch.chdir(tmp_path)
    questions = write(tmp_path / "q.jsonl", question_lines(5, documents=3))
    code, _, errors = cli("audit", "--questions", questions, *arguments)
    assert code == 2
    assert words in " ".join(errors.replace("│", " ").split())
