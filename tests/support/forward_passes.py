"""Count a model's forward passes, call a function before each, and collect the prompts that run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel


@contextmanager
def forward_passes(model: PreTrainedModel, action: Callable[[int], None] | None = None) -> Iterator[list[int]]:
    """Yield a list that grows by the number of sequences of each forward pass.

    Args:
        action: called before each pass with the number of passes, including this one.
    """
    sizes: list[int] = []

    def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        sizes.append((args[0] if args else kwargs["input_ids"]).shape[0])
        if action is not None:
            action(len(sizes))

    handle = model.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield sizes
    finally:
        handle.remove()


@contextmanager
def reading(model: PreTrainedModel) -> Iterator[list[list[int]]]:
    """Collect the token ids of each prompt that runs without a batch."""
    prompts: list[list[int]] = []

    def note(_: Any, args: Any, kwargs: dict[str, Any]) -> None:
        ids = kwargs["input_ids"]
        if ids.shape[1] > 1:
            prompts.append(ids[0].tolist())

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield prompts
    finally:
        handle.remove()
