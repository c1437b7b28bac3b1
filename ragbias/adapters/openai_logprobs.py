"""Log-probabilities in the shape of OpenAI's chat completions."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from ragbias.generation.decoding import decoded
from ragbias.generation.report import Generation

CONTEXT = 4  # tokens before one that can change its text: half a character, a leading blank


def openai_logprobs(
    generation: Generation, tokenizer: PreTrainedTokenizerBase, keep_special: tuple[str, ...] = ()
) -> dict[str, Any]:
    """``{"content": [{"token", "bytes", "logprob", "top_logprobs": []}, ...]}`` for the tokens of an answer's text.

    The tokens add up to the text; the last one may extend into the stop string. A character of several tokens belongs
    to the last of them.
    """
    assert generation.logprobs is not None
    content: list[dict[str, Any]] = []
    ids, shown = generation.token_ids, 0
    begin = 0  # first token of an incomplete character
    for index, logprob in enumerate(generation.logprobs):
        if generation.finish_reason == "stop" and shown >= len(generation.text):
            break
        start = max(0, begin - CONTEXT)
        before = decoded(tokenizer, ids[start:begin], keep_special)
        text = decoded(tokenizer, ids[start : index + 1], keep_special)[len(before) :]
        if text.endswith("\ufffd") and index + 1 < len(ids):
            text = ""
        else:
            begin = index + 1
        shown += len(text)
        content.append(openai_token(text, logprob))
    return {"content": content}


def openai_token(text: str, logprob: float) -> dict[str, Any]:
    """One token in OpenAI's shape, without alternatives."""
    return {"token": text, "bytes": list(text.encode()), "logprob": logprob, "top_logprobs": []}
