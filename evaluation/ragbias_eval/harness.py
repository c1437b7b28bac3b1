"""Measure with lm-eval how a method changes results on benchmarks such as MMLU.

``python -m ragbias_eval.harness --model ragbias --model_args pretrained=tiny,method=ms-poe --tasks mmlu``
runs lm-eval's command line. The command ``lm_eval`` would not find the model ``ragbias``.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from ragbias import debias, methods
from ragbias.errors import RunError
from ragbias.extras import require
from ragbias.generation.scoring import continue_prefill, prefill
from ragbias.methods import Method
from ragbias.models import local_path

require("lm_eval.models.huggingface", "lm-eval", "ragbias-eval", "evaluation")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.registry import register_model  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402

Scored = tuple[tuple[str, str] | None, list[int], list[int]]


@register_model("ragbias")
class RagBiasLM(HFLM):  # type: ignore[misc]  # lm-eval has no types
    """lm-eval's ``hf`` model with a method that needs no documents.

    Methods treat prompts and generated tokens differently. Therefore continuations are scored like generated tokens:
    one forward pass runs the context, and a second pass runs the continuation. Perplexity is the exception: one pass
    runs the whole text. ``batch_size`` applies only to generation.

    Args:
        method: name or object of a method. A method that needs documents raises ``RunError``.
        settings: other arguments of lm-eval's ``hf`` model.
    """

    def __init__(
        self, pretrained: str, method: str | Method = "none", device: str | None = None, **settings: Any
    ) -> None:
        self.method = methods.get(method, pretrained)
        if self.method.needs_documents:
            usable = ", ".join(name for name, kind in methods.METHODS.items() if not kind.needs_documents)
            raise RunError(f"{self.method.name} needs documents, and lm-eval's prompts have none; use one of {usable}")
        path = local_path(pretrained)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        super().__init__(pretrained=path, backend="causal", device=device, **settings)
        with debias(self.model, self.method):  # raises if the method does not support the model
            pass

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        with debias(self.model, self.method):
            answers: list[str] = super().generate_until(requests, disable_tqdm)
            return answers

    @torch.no_grad()
    def _loglikelihood_tokens(
        self, requests: Sequence[Scored], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """Return the log-probability of each continuation, and whether greedy decoding would generate it."""
        results = []
        last: tuple[list[int], Tensor] | None = None  # the last context, and the logits after it
        with debias(self.model, self.method):
            for texts, context, continuation in track(requests, "Scoring continuations", disable=disable_tqdm):
                context = self._cut_context(context, continuation)
                if texts is None:  # a whole text runs in one pass
                    ids = torch.tensor([[*context, *continuation[:-1]]], device=self.device)
                    logits = self.model(ids, use_cache=False, logits_to_keep=len(continuation)).logits[0]
                elif last is not None and last[0] == context and len(continuation) == 1:
                    logits = last[1]
                else:
                    logits = continue_prefill(self.model, *prefill(self.model, context), continuation)
                    last = context, logits[:1]
                target = torch.tensor(continuation, device=logits.device)
                logprobs = logits.float().log_softmax(-1).gather(1, target[:, None])
                result = logprobs.sum().item(), bool((logits.argmax(-1) == target).all())
                results.append(result)
                if texts is not None:
                    self.cache_hook.add_partial("loglikelihood", texts, result)
        return results

    def _cut_context(self, context: list[int], continuation: list[int]) -> list[int]:
        """Cut off the beginning of a context if it does not fit the window together with its continuation."""
        limit = self.max_length + 1 - len(continuation)
        if limit < 1:
            raise RunError(
                f"a continuation of {len(continuation)} tokens leaves no tokens for its prompt in the model's "
                f"window of {self.max_length}; use a model with a longer window"
            )
        if len(context) > limit:
            warnings.warn(
                f"prompts that are too long for the model's window of {self.max_length} tokens lose their beginning",
                stacklevel=2,
            )
        return context[-limit:]


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
