"""Inputs and checks that the tests of LangChain and LlamaIndex share."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from ragbias import DebiasedLM
from ragbias.errors import NumberedHeadersWarning
from support.scripted import RecordingLM, with_template

REPORT_KEYS = {
    "method_requested", "method_ran", "source", "spans", "n_expected", "n_found", "reason", "backend", "order",
    "numbering", "n_left_plain", "segmentation_changed", "cached_tokens", "reader",
}  # fmt: skip

# chat templates that render documents, as those of Granite and Command R do, and TURNS, which ignores them
GATES = {"Falcon": "The gate of the station is red.", "Ivory": "The gate of the bridge is blue.", "Zoo": "Owls sleep."}
TURNS = (
    "{% for m in messages %}<|{{ m.role if m.role in ('system', 'user', 'assistant') else 'user' }}|>\n"
    "{{ m.content }}\n{% endfor %}<|assistant|>\n"
)
GRANITE = (
    "{% if documents %}<|system|>\n{% for document in documents %}Document {{ loop.index0 }}\n{{ document.text }}\n\n"
    "{% endfor %}\n{% endif %}" + TURNS
)
TURN_EACH = "{% for document in documents or [] %}<|user|>\n{{ document.content }}\n{% endfor %}" + TURNS
COMMAND_R = (
    "<|system|>\n{% if documents %}<results>\n{% for document in documents %}Document: {{ loop.index0 }}\n"
    "{% for key, value in document.items() %}{{ key }}: {{ value }}\n{% endfor %}\n{% endfor %}</results>{% endif %}\n"
    + TURNS
)


def recording(lm: DebiasedLM, template: str) -> RecordingLM:
    """The model with another chat template; it records its prompts."""
    return RecordingLM(with_template(lm, template, strip_numbering=True))


@contextmanager
def fresh_listener(install: Callable[[], None], uninstall: Callable[[], None]) -> Iterator[None]:
    """Isolate the block: retrievals inside and outside are not visible to each other."""
    uninstall()
    install()
    yield
    uninstall()
    install()


def assert_warned_at_their_lines(places: Sequence[Callable[[], Any]]) -> None:
    """Assert that each call warns at its own line, and only the first time."""
    for place in places:
        with pytest.warns(NumberedHeadersWarning, match="strip_numbering=True") as warned:
            report = place()
        assert (report["source"], report["n_found"], report["numbering"]) == ("headers", 3, "present")
        code = place.__code__
        own = [each for each in warned if each.category is NumberedHeadersWarning]  # no garbage of other tests
        lines = [(each.filename, each.lineno) for each in own]
        assert lines == [(code.co_filename, code.co_firstlineno)], [str(each) for each in warned]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [place()["numbering"] for place in places] == ["present"] * len(places)


def assert_warned_once_in_threads(call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Assert one warning if ``call`` is library code and the thread runs no user code."""
    with ThreadPoolExecutor(2) as pool:
        with pytest.warns(NumberedHeadersWarning):
            pool.submit(call, *arguments, **options).result()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pool.submit(call, *arguments, **options).result()
