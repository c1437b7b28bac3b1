"""Models that write scripted answers, and a `DebiasedLM` that records its requests. Everything else is real."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ragbias import DebiasedLM
from ragbias.boundaries import Boundaries
from ragbias.generation import Request

TOOL_TEMPLATE = (
    "{{ bos_token }}{% if tools %}<|system|>\nTools:\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "Call one as <tool_call>\n{'name': ..., 'arguments': ...}\n</tool_call>\n{% endif %}"
    "{% for m in messages %}<|{{ m.role if m.role in ('system', 'user', 'assistant') else 'user' }}|>\n"
    "{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>"
    "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""A chat template with tools in the format of Hermes and Qwen models."""


def with_template(lm: DebiasedLM, template: str | None = TOOL_TEMPLATE, **settings: Any) -> DebiasedLM:
    """The model with another chat template. ``settings`` are arguments of ``DebiasedLM``."""
    tokenizer = copy.deepcopy(lm.tokenizer)
    tokenizer.chat_template = template
    return DebiasedLM(lm.model, tokenizer, **settings)


class RecordingLM(DebiasedLM):
    """Record each prompt with its found documents, its request and its report."""

    def __init__(self, lm: DebiasedLM) -> None:
        super().__init__(lm.model, lm.tokenizer, lm.method, name=lm.name, backend=lm.backend)
        self.strip_numbering = lm.strip_numbering
        self.seen: list[tuple[str, Boundaries]] = []
        self.prompts: list[str] = []
        self.requests: list[Request] = []
        self.reports: list[dict[str, Any]] = []

    def prepare(self, prompt: Any, **settings: Any) -> Request:
        request = super().prepare(prompt, **settings)
        self.seen.append((prompt, settings["boundaries"]))
        self.prompts.append(prompt)
        self.requests.append(request)
        self.reports.append(request.report.as_dict())
        return request


@contextmanager
def saying(lm: DebiasedLM, *answers: str) -> Iterator[None]:
    """Replace the model's logits, so that it writes the answers in turn.

    If the prompt already begins an answer, the model writes the rest of it. After the last answer, the model's logits
    are unchanged.
    """
    scripts = iter(answers)
    rest: list[int] = []

    def replace(model: torch.nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        ids = args[0] if args else kwargs["input_ids"]
        if ids.shape[1] > 1:  # a new prompt
            rest[:] = _written(lm, next(scripts, None), lm.tokenizer.decode(ids[0, -64:]))
        if rest:
            output.logits[:] = -10.0
            output.logits[..., rest.pop(0)] = 10.0

    hook = lm.model.register_forward_hook(replace, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def _written(lm: DebiasedLM, answer: str | None, prompt: str) -> list[int]:
    if answer is None:
        return []
    begun = next((size for size in range(len(answer), 1, -1) if prompt.endswith(answer[:size])), 0)
    return [*lm.tokenizer(answer[begun:], add_special_tokens=False)["input_ids"], lm.tokenizer.eos_token_id]


def call(name: str, arguments: str) -> str:
    """Format a tool call as Hermes and Qwen models write it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
