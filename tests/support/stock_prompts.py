"""Twenty prompts with documents, and a recorder of a model's tokens, to compare with the stock classes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel

from ragbias.models.tiny.world import held_out_corpus

TEMPLATES = [
    "Context: {0} {1} {2}\n\nQuestion: {q}\nAnswer:",  # tokens consist of a blank and the next word
    "Context:\n\n{0}\n\n{1}\n\n{2}\n\nQuestion: {q}\nAnswer:",
    "Documents [{0}, {1}, {2}]\n{q}",
    "{0}\n{1}\n{2}\n{q}",
]
PASSAGES = [passage.text for passage in held_out_corpus(60, seed=1)]
QUESTIONS = ["Who is it?", "When was the bridge built?", "What colour is the gate?", "Where is he?", "Why?"]
PROMPTS = [
    (template.format(*documents, q=question), documents)
    for row, question in enumerate(QUESTIONS)
    for column, template in enumerate(TEMPLATES)
    for documents in [PASSAGES[3 * (4 * row + column) :][:3]]
]


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
