"""From a prompt and the requested method to the request that runs."""

from __future__ import annotations

import threading

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ragbias.binding import backend_of
from ragbias.binding.architectures import window_of
from ragbias.checks import check_not_cancelled
from ragbias.errors import PromptTooLongError
from ragbias.generation.ranking import model_attention, ranking_of
from ragbias.generation.report import Report
from ragbias.generation.request import Origin, Request, reason_to_run_plain
from ragbias.generation.scoring import continuation_logits
from ragbias.methods import AttentionMethod, NoMethod, ReorderingMethod


def resolve(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    origin: Origin,
    backend: str,
    cancelled: threading.Event | None = None,
) -> Request:
    """Choose the method that runs, put the documents into its order, and fill the report.

    Raises:
        PromptTooLongError: the prompt leaves no room for an answer in the model's window.
        CancelledError: ``cancelled`` was set while the model ran.
    """
    wanted, boundaries = origin.wanted, origin.boundaries
    ran, reason = wanted, boundaries.reason if wanted.needs_documents or boundaries.n_expected else ""
    plain_because = origin.reason or reason_to_run_plain(origin.tokens, wanted.fewest_documents)
    if wanted.needs_documents and plain_because:
        ran, reason = NoMethod(), "; ".join(filter(None, (plain_because, reason)))
    plain = origin.whole(tokenizer)
    tokens = origin.tokens if ran.needs_documents else plain
    check_length(Request.longest_prompt(ran, tokens), window_of(model.config))
    order: tuple[int, ...] = ()
    if isinstance(ran, ReorderingMethod):
        attention = model_attention(model, tokenizer, origin, cancelled)
        order = ranking_of(ran, tokens.documents, attention).order
        in_order = origin.reordered(order)
        tokens, plain = in_order.tokens, in_order.whole(tokenizer)
    if isinstance(ran, AttentionMethod) and ran.selective:
        confidence = []
        for method, prompt in ((NoMethod(), plain), (ran, tokens)):
            check_not_cancelled(cancelled)
            first = continuation_logits(model, prompt, method, [0], backend)
            confidence.append(first.softmax(-1).amax().item())
        if confidence[0] >= confidence[1]:
            values = ", ".join(f"{each:.3f}" for each in confidence)
            ran, reason = NoMethod(), f"selective: the plain model is as confident of its first token ({values})"
        else:
            reason = ""
        tokens = tokens if ran.needs_documents else plain
    report = Report(
        method_requested=wanted.name,
        method_ran=ran.name,
        source=boundaries.source,
        spans=tuple(tokens.spans),
        n_expected=boundaries.n_expected,
        n_found=boundaries.n_found,
        reason=reason,
        backend=backend_of(model, backend) if ran.acts_on == "attention" else "",
        order=order,
        numbering=boundaries.numbering,
        n_left_plain=boundaries.n_left_plain,
        segmentation_changed=tokens.ids != plain.ids,
    )
    return Request(tokens, NoMethod() if ran.acts_on == "order" else ran, report, origin)


def check_length(length: int, window: int, answer: int = 1) -> None:
    """Raise ``PromptTooLongError`` for a prompt of ``length`` tokens that leaves no room for ``answer`` more."""
    if length + answer > window:
        needed = "" if answer == 1 else f" of {answer}"
        raise PromptTooLongError(
            f"the prompt has {length} tokens, and leaves no room for an answer{needed} in the model's window of "
            f"{window}; retrieve fewer or shorter documents"
        )
