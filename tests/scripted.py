"""A model that writes what a test wants it to write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ragbias import DebiasedLM


@contextmanager
def saying(lm: DebiasedLM, *answers: str) -> Iterator[None]:
    """The model's logits are replaced, so that it writes these answers one after the other; all else is real.

    When they are used up, the model goes on by itself.
    """
    end = lm.tokenizer.eos_token_id
    scripts = iter([[*lm.tokenizer(text, add_special_tokens=False)["input_ids"], end] for text in answers])
    rest: list[int] = []

    def replace(model: torch.nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        ids = args[0] if args else kwargs["input_ids"]
        if ids.shape[1] > 1:  # a new prompt
            rest[:] = next(scripts, [])
        if rest:
            output.logits[:] = -10.0
            output.logits[..., rest.pop(0)] = 10.0

    hook = lm.model.register_forward_hook(replace, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
