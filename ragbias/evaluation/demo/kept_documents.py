"""The demo's question asked once more, when its documents have been computed before."""

from __future__ import annotations

import statistics

from ragbias.cache import DocumentCache
from ragbias.evaluation.cost.interleaved import now
from ragbias.evaluation.tasks import Task
from ragbias.generation.request import in_parts
from ragbias.lm import DebiasedLM

METHOD = "ape"
ROUNDS = 7


def first_token_line(lm: DebiasedLM, task: Task) -> str:
    """What it takes to the first token of a task's first prompt, plain and with kept documents: medians, in turns."""
    case = next(task.cases())
    prompt = in_parts(task.prompt(lm, case), case.documents, None)[0]
    cached = DebiasedLM(lm.model, lm.tokenizer, METHOD, lm.name, cache=DocumentCache())
    seconds: dict[str, list[float]] = {"none": [], METHOD: []}
    for _ in range(ROUNDS + 1):
        for asked, method in ((lm, "none"), (cached, METHOD)):
            begin = now(lm.model.device)
            answer = asked.generate(prompt, method=method, max_new_tokens=1)
            seconds[method].append(now(lm.model.device) - begin)
    plain, kept = (statistics.median(each[1:]) for each in seconds.values())  # the first time computes the documents
    return (
        f"The same question again, its {len(prompt.documents)} documents computed before: {1000 * kept:.0f} ms to the "
        f"first token with {METHOD}, {1000 * plain:.0f} ms with the plain model ({plain / kept:.1f} times faster; "
        f"{answer.report.cached_tokens} of {answer.usage.prompt_tokens} tokens were kept)."
    )
