"""One question through every installed framework's own chain, in both orders of the retrieved documents.

The integrations offer themselves under the entry point group ``ragbias.demo``, so that this package knows none of them.
Each is a function ``(passages, question, lm, method, documents) -> (answer as retrieved, answer reversed)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points

from ragbias.errors import MissingExtraError
from ragbias.evaluation.demo.demo_run import Demo
from ragbias.methods import DEFAULT_METHOD
from ragbias.models.tiny.world import WorldQuestion


def ask_in_both_orders(demo: Demo, question: WorldQuestion) -> Iterator[tuple[str, str, str, str]]:
    """``(framework, method, answer as retrieved, answer reversed)`` for ``none`` and ``pine``.

    Raises:
        MissingExtraError: no integration is installed.
    """
    integrations = sorted(entry_points(group="ragbias.demo"), key=lambda entry: entry.name)
    if not integrations:
        raise MissingExtraError(
            "no integration is installed; install them with: pip install langchain-ragbias llama-index-llms-ragbias"
        )
    for integration in integrations:
        answer = integration.load()
        for method in ("none", DEFAULT_METHOD):
            documents = max(demo.settings.documents)
            forward, backward = answer(demo.index.texts, question.question, demo.lm, method, documents)
            yield integration.name, method, forward, backward
