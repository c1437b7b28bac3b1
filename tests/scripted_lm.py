"""`DebiasedLM`s that keep what they are asked; one answers from a script, for what small models cannot write."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ragbias.boundaries import Boundaries
from ragbias.decoding import Stream
from ragbias.lm import DebiasedLM
from ragbias.report import Generation
from ragbias.request import Request

TOOL_TEMPLATE = (
    "{{ bos_token }}{% if tools %}{{ '<|system|>\\n' }}{% for tool in tools %}{{ tool | tojson + '\\n' }}{% endfor %}"
    "{% endif %}"
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m['content'] + '\\n' }}"
    "{% for call in m['tool_calls'] or [] %}{{ '<tool_call>\\n' }}"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "{{ '\\n</tool_call>\\n' }}{% endfor %}{% endfor %}{{ '<|assistant|>\\n' }}"
)


class RecordingLM(DebiasedLM):
    """Keeps each prompt with the documents that were found in it."""

    def __init__(self, lm: DebiasedLM) -> None:
        super().__init__(lm.model, lm.tokenizer, lm.method, lm.name)
        self.seen: list[tuple[str, Boundaries]] = []

    def prepare(self, prompt: Any, **settings: Any) -> Request:
        self.seen.append((prompt, settings["boundaries"]))
        return super().prepare(prompt, **settings)


class ScriptedLM(DebiasedLM):
    """Runs each prompt for one token and replaces its answer's text, or what the prompt has not begun of it."""

    def __init__(self, lm: DebiasedLM, answers: Sequence[str], chat_template: str | None = TOOL_TEMPLATE) -> None:
        tokenizer = copy.deepcopy(lm.tokenizer)
        if chat_template is not None:
            tokenizer.chat_template = chat_template
        super().__init__(lm.model, tokenizer, lm.method, lm.name)
        self.answers = list(answers)
        self.prompts: list[str] = []
        self.reports: list[dict[str, Any]] = []

    def prepare(self, prompt: Any, **settings: Any) -> Request:
        self.prompts.append(prompt)
        return super().prepare(prompt, **settings)

    def batch(self, prompts: Sequence[Any], **settings: Any) -> list[Generation]:
        (generation,) = super().batch(prompts, **{**settings, "max_new_tokens": 1})
        self.reports.append(generation.report.as_dict())
        answer, prompt = self.answers.pop(0), self.prompts[-1]
        begun = next((size for size in range(len(answer), 0, -1) if prompt.endswith(answer[:size])), 0)
        return [replace(generation, text=answer[begun:])]

    def stream(self, prompt: Any, **settings: Any) -> Stream:
        (generation,) = self.batch([prompt], **settings)

        def job(emit: Callable[[str], None], cancelled: threading.Event) -> Generation:
            for end in range(0, len(generation.text), 3):
                emit(generation.text[:end])
            return generation

        return Stream(job)


def call(name: str, arguments: str) -> str:
    """A call as Hermes and Qwen models write it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
