"""A model's forward passes, counted and acted on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel


@contextmanager
def forward_passes(model: PreTrainedModel, action: Callable[[int], None] | None = None) -> Iterator[list[int]]:
    """A list of the number of sequences in each forward pass so far.

    Args:
        action: called before each pass with the number of passes, this one included.
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
