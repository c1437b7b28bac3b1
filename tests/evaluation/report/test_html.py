"""The HTML file is complete and self-contained, and escapes names and settings."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from xml.etree.ElementTree import fromstring

import pytest

from ragbias_eval.report.combine import summarise_runs
from ragbias_eval.report.html import as_html
from ragbias_eval.report.tables import MAX_COLUMNS
from ragbias_eval.runs import Run
from support.bench_records import logprobs_with, records_with, u_shape

EVIL = "<script>alert('x')</script>"
POSITIONS = [0, 4, 9]


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.addresses, self.text = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def costs(labels, documents=(10,)):
    timed = {label: {"prefill_ratio": [1.0, 0.9, 1.2]} for label in labels}
    return {f"tiny|made-up|{count}": timed for count in documents}


def run(settings=None, documents=(10, 20), **fields):
    accuracies = {"none": u_shape(POSITIONS, 0.9, 0.3), "pine": dict.fromkeys(POSITIONS, 0.7)}
    records = [
        record for count in documents for record in records_with(accuracies, 12, count, groups=(EVIL, "b"), **fields)
    ]
    return Run(Path("folder"), records, [], costs(accuracies, documents), settings or {})


def figures(page):
    """Return each figure as its tree of SVG elements."""
    return [fromstring(unquote(address.removeprefix("data:image/svg+xml,"))) for address in Page(page).addresses]


@pytest.fixture(scope="module")
def page():
    one = run({"decides": {"tasks": [{"name": "mdqa", "data": [{"file": "nq-open-oracle.jsonl.gz"}]}], "x": EVIL}})
    return as_html(summarise_runs([one]), [one])


def test_nothing_is_fetched_and_nothing_runs(page):
    parsed = Page(page)
    assert parsed.open == []
    assert "script" not in parsed.tags and "link" not in parsed.tags and EVIL not in page
    assert parsed.addresses and all(address.startswith("data:image/svg+xml,") for address in parsed.addresses)
    assert "url(" not in page and "@import" not in page
    assert page.count("alert(") >= 2  # a group's name and a setting, as text
    assert EVIL in "".join(parsed.text)


def test_figures_are_svg_and_the_same_each_time(page):
    drawn = figures(page)
    assert len(drawn) == 2 * 2  # curves and cost of both numbers of documents
    assert all(each.tag == "{http://www.w3.org/2000/svg}svg" for each in drawn)
    again = run()
    first, second = (
        re.findall(r'src="([^"]+)"', as_html(summarise_runs([each]), [each])) for each in (again, again)
    )  # fmt: skip
    assert first == second


def test_words_in_figures_are_text_whatever_stands_in_a_name():
    name = "<b>#1 & '100%'\" Ü</b>"
    accuracies = {"none": u_shape(POSITIONS, 0.9, 0.3), name: dict.fromkeys(POSITIONS, 0.7)}
    one = Run(Path("folder"), records_with(accuracies, 12), [], costs(accuracies), {})
    words = [set(each.itertext()) for each in figures(as_html(summarise_runs([one]), [one]))]
    assert len(words) == 2 and all(name in each for each in words)
    assert {"accuracy", "position of the gold document (1 = first)"} <= words[0]


def test_no_table_of_a_committed_report_is_too_wide():
    reports = list((Path(__file__).parents[3] / "docs/results").rglob("*.html"))
    rows = [(path.parent.name, row) for path in reports for row in re.findall("<tr>.*?</tr>", path.read_text())]
    assert {name for name, row in rows if len(re.findall("<t[hd]", row)) > 1 + MAX_COLUMNS} == set()
    assert len({name for name, _ in rows}) == len(reports) > 10


def test_notes_name_easy_distractors_and_numbered_documents(page):
    assert "easier to rule out" in page and "number the documents" in page
    settings = {"decides": {"tasks": [{"name": "mdqa", "data": [{"file": "nq-open-20.jsonl.gz"}], "indices": False}]}}
    other = run({**settings, "settings": {"out": "runs/oracle"}}, documents=(10,))
    text = as_html(summarise_runs([other]), [other])
    assert "easier to rule out" not in text and "number the documents" not in text
    assert "nq-open-20.jsonl.gz" in text


def test_tables_hold_the_figures_of_the_summary(page):
    text = " ".join(" ".join(Page(page).text).split())
    pine = summarise_runs([run()])["results"][0]["methods"]["pine"]
    estimate, low, high = pine["worst"]
    assert f"pine {estimate:.2f} {low:.2f} to {high:.2f}" in text
    assert "Accuracy by position of the gold document" in text and "Mean accuracy by group" in text


def test_a_task_without_positions_has_a_page_as_well():
    records = records_with({"none": {0: 0.4}, "ms-poe": {0: 0.5}}, 8, documents=0)
    records = [replace(record, gold_position=None) for record in records]
    plain = Run(Path("folder"), records, [], costs(["none", "ms-poe"], [0]), {})
    text = as_html(summarise_runs([plain]), [plain])
    assert "no documents" in text and "not recorded" in text
    assert text.count("<figure>") == 1  # accuracy against cost


def test_a_log_probability_report_has_no_accuracy():
    records = logprobs_with({"none": {0: 0.0, 9: -1.0}, "pine": {0: -0.5, 9: -0.5}}, 12, shorten=40)
    run = Run(Path("run"), records, [], {}, {})
    page = as_html(summarise_runs([run]), [run])
    assert (
        "log-probability of the gold answer, in nats" in page
        and "Log-probability of the gold answer by position" in page
    )
    assert "Log-probability: natural logarithm" in page and "cut to 40 words around the gold answer" in page
    text = "".join(Page(page).text)
    assert "Tables are sorted by the worst position" in text and "accurac" not in text.lower()


def test_wide_tables_are_cut_to_fit_the_page(page):
    heads = re.findall(r"<thead><tr>(.*?)</tr>", page)
    assert max(head.count("<th ") for head in heads) <= 1 + MAX_COLUMNS
    assert any(head.startswith('<th scope="col">method') and ">flips<" in head for head in heads)
