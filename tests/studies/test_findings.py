"""Every figure on the page of findings comes from the stored studies, and has an interval."""

import re

import pytest

from ragbias.data.intervals import format_figure
from ragbias_eval.report.combine import differences_from, summarise_runs
from ragbias_eval.runs import read_run
from studies.publish import RESULTS, ROOT, study_names
from studies.stored_runs import read_stored

PAGE = (ROOT / RESULTS / "findings.md").read_text()
CLAIMS, _ = PAGE.split("## What it took")  # after that, ratios of times with their ranges
FIGURE = re.compile(r"([+-]?\d+\.\d\d) \(([+-]?\d+\.\d\d) to ([+-]?\d+\.\d\d)\)")
AGAINST = re.compile(r"ragbias report docs/results/(\S+) --against ([\w-]+)")


def figures(text):
    """Estimates with their intervals; ``+0.43 (0.09 to 0.78)`` and ``0.43 (+0.09 to +0.78)`` are the same."""
    return {tuple(map(float, found)) for found in FIGURE.findall(text)}


@pytest.fixture(scope="module")
def known():
    """The figures of all stored summaries and calibrations, and of the commands that the page names."""
    found = [format_figure(figure, "+.2f") for name in study_names() for figure in _triples(_summary(name))]
    found += [
        format_figure(figure, "+.2f") for name, method in AGAINST.findall(CLAIMS) for figure in _against(name, method)
    ]
    return figures("\n".join([(ROOT / RESULTS / "calibrations.md").read_text(), *found]))


def _summary(name):
    folder = ROOT / RESULTS / name
    return read_stored(folder) if folder.is_dir() else {}


def _triples(value):
    """Every ``[estimate, low, high]`` in plain data."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list) and len(value) == 3 and all(isinstance(each, float) for each in value):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _triples(each)


def _against(name, method):
    run = read_run(ROOT / RESULTS / name)
    for result in summarise_runs([run])["results"]:
        for by_method in differences_from(result, [run], method).values():
            for each in by_method.values():
                yield from each.values()


def test_every_figure_is_one_of_the_stored_studies(known):
    claimed = figures(CLAIMS)
    assert len(claimed) > 20 and not claimed - known


def test_no_figure_stands_without_its_interval():
    prose = FIGURE.sub("", CLAIMS)
    assert not re.findall(r"\d\.\d\d", re.sub(r"\]\([^)]*\)|`[^`]*`|arXiv [\d.]+", "", prose))


def test_every_stored_study_is_named():
    stored = [name for name in study_names() if (ROOT / RESULTS / name).is_dir()]
    assert [name for name in stored if f"({name}/report.html)" not in CLAIMS] == []
