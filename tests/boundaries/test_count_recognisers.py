"""``count_recognisers.py`` counts the recognisers that fire in a prompt."""

import contextlib
import itertools

import pytest
from boundaries.count_recognisers import EVERY, Counted, fired

from ragbias import Prompt
from ragbias.boundaries import locate
from ragbias.boundaries.sources import KnownText
from ragbias.errors import AmbiguousSegmentsError

TEXTS = ["The falcon is red.", "Two herons stand.", "An owl is asleep."]
PROMPTS = {
    "texts: verbatim": "{t}",
    "texts: stripped or escaped": '"{t}\\n"',
    "header: metadata": "{m}\n{t}",
    "header: tag or printed list": "<doc>{t}</doc>",
    "header: the same for all": "Text: {t}",
    "header: of a known form": "Document [1](Title: x{n}) {t}",
    "header: as many lines as the others": "By {m}\n{t}",
    "numbers: certain": "[{n}] {t}",
    "numbers: doubtful, figure": "Apollo {n}1\n{t}",
    "numbers: doubtful, roman": "Source {r}:\n{t}",
}


@pytest.mark.parametrize("label", PROMPTS)
def test_what_fires_is_counted(label):
    titles = ["Red", "Two", "Owls"]
    rows = zip(TEXTS, titles, itertools.count(1), ["I", "II", "III"], strict=False)
    items = "\n\n".join(PROMPTS[label].format(t=text, m=title, n=n, r=roman) for text, title, n, roman in rows)
    ends = "\n" if "escaped" in label else ""
    known = [
        KnownText.of(t + ends, {"m": m} if "metadata" in label else {}) for t, m in zip(TEXTS, titles, strict=True)
    ]
    with fired() as found:
        spans = locate(text := f"Use it.\n\n{items}\n\nWhich?", run=[known]).spans
        with contextlib.suppress(AmbiguousSegmentsError):
            Prompt.from_text(text, spans)
    assert {label, "source: run"} <= found <= set(EVERY)


def test_the_table_has_each_recogniser_once():
    lines: list[str] = []
    plugin = Counted()
    plugin.counts.update({"source: run": 2})
    plugin.pytest_terminal_summary(type("Reporter", (), {"write_line": staticmethod(lines.append)}))
    assert "| source: run | 2 |" in lines
    assert len(lines) == len(set(EVERY)) + 1 == len(EVERY) + 1
