"""The model ``ragbias`` of lm-eval: a Hugging Face model that runs with a method; importing it registers it there."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from rich.progress import track
from torch import Tensor

from ragbias import debias, methods
from ragbias.errors import RunError
from ragbias.generation.scoring import continued, prefilled
from ragbias.methods import Method
from ragbias.models import local_path

Scored = tuple[tuple[str, str] | None, list[int], list[int]]


@register_model("ragbias")
class RagBiasLM(HFLM):  # type: ignore[misc]  # lm-eval has no types
    """lm-eval's ``hf`` model with a method, for the side effects of methods that need no documents.

    Continuations are scored as they would be generated: the context is the prompt and enters in one forward pass, the
    continuation follows with the cache. Methods tell the two apart. Prompts run one at a time, whatever ``batch_size``
    says, but for generated answers; choices of one token share the pass of their context. Whole texts (for perplexity)
    have no prompt, and enter in one pass.

    A prompt that is longer than the window leaves room for loses its beginning, as in lm-eval, with a warning.

    Args:
        pretrained: ``"tiny"``, a hub name or a path.
        method: a name or an instance that needs no documents.
        device: default: a GPU if there is one.
        cut_middle: keep the first and the last half of such a prompt, as LongBench does, and cut out its middle.
        settings: any other argument of lm-eval's ``hf`` model.

    Attributes:
        cut: for each prompt that lost a part, the number of its tokens that were left.

    Raises:
        RunError: the method needs documents, or ``cut_middle`` is neither True nor False.
        UnknownMethodError, MethodError, UnsupportedModelError: as for ``ragbias.debias``.
    """

    def __init__(
        self,
        pretrained: str,
        method: str | Method = "none",
        device: str | None = None,
        cut_middle: bool = False,
        **settings: Any,
    ) -> None:
        if type(cut_middle) is not bool:
            raise RunError(f"cut_middle={cut_middle!r}; expected True or False")
        self.cut_middle = cut_middle
        self.cut: dict[str, int] = {}
        self.method = methods.get(method, pretrained)
        if self.method.needs_documents:
            raise RunError(
                f"{self.method.name} needs documents, and the prompts of lm-eval have none; take a method that acts on "
                f"any prompt: {', '.join(name for name, each in methods.METHODS.items() if not each.needs_documents)}"
            )
        path = local_path(pretrained)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        super().__init__(pretrained=path, backend="causal", device=device, **settings)
        with debias(self.model, self.method):  # refuses at once what does not fit the model
            pass

    def tok_batch_encode(
        self,
        strings: Sequence[str],
        padding_side: str = "left",
        left_truncate_len: int | None = None,
        truncation: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Token ids and mask ``[len(strings), width]`` of prompts, padded on the left; too long ones are cut."""
        ids, mask = super().tok_batch_encode(strings, padding_side, None, truncation)
        if left_truncate_len is None or ids.shape[1] <= left_truncate_len:
            return ids, mask
        kept = [
            self._cut(prompt, own[seen.bool()].tolist(), left_truncate_len)
            for prompt, own, seen in zip(strings, ids, mask, strict=True)
        ]
        padded = self.tokenizer.pad({"input_ids": kept}, padding_side="left", return_tensors="pt")
        return padded["input_ids"], padded["attention_mask"]

    def _cut(self, prompt: str, tokens: list[int], room: int) -> list[int]:
        """At most ``room`` of a prompt's tokens."""
        if len(tokens) <= room:
            return tokens
        if not self.cut_middle and not self.cut:
            warnings.warn(
                f"a prompt of {len(tokens)} tokens is longer than the {room} that the model's window of "
                f"{self.max_length} leaves for it, so that it loses its beginning, as do others like it; "
                "cut_middle=True (ragbias bench --cut-middle) keeps its first and last half",
                stacklevel=2,
            )
        self.cut[prompt] = room
        first = room // 2 if self.cut_middle else 0
        return tokens[:first] + tokens[len(tokens) - (room - first) :]

    def _model_generate(self, *args: Any, **settings: Any) -> Tensor:
        with debias(self.model, self.method):
            output: Tensor = super()._model_generate(*args, **settings)
            return output

    def _loglikelihood_tokens(
        self, requests: Sequence[Scored], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """Log-probability of each continuation, and whether it is what greedy decoding would write."""
        results = []
        first: tuple[list[int], Tensor] | None = None  # of the last context: its tokens, the logits after them
        for texts, context, continuation in track(requests, "Scoring continuations", disable=disable_tqdm):
            room = self.max_length + 1 - len(continuation)
            if room < 1:
                raise RunError(
                    f"a continuation of {len(continuation)} tokens leaves no room for its prompt in the model's window "
                    f"of {self.max_length}; take a model with a longer one"
                )
            if texts is not None:
                context = self._cut(texts[0], context, room)
            if texts is None:
                logits = self._whole(context, continuation)
            elif first is not None and first[0] == context and len(continuation) == 1:
                logits = first[1]
            else:
                logits = self._after(context, continuation)
                first = context, logits[:1]
            target = torch.tensor(continuation, device=logits.device)
            logprobs = logits.float().log_softmax(-1).gather(1, target[:, None])
            result = logprobs.sum().item(), bool((logits.argmax(-1) == target).all())
            results.append(result)
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, result)
        return results

    @torch.no_grad()
    def _after(self, context: list[int], continuation: list[int]) -> Tensor:
        """Logits ``[len(continuation), V]`` for the tokens of a continuation, which follows the prompt's pass."""
        with debias(self.model, self.method):
            return continued(self.model, *prefilled(self.model, context), continuation)

    @torch.no_grad()
    def _whole(self, context: list[int], continuation: list[int]) -> Tensor:
        """Logits ``[len(continuation), V]`` for the tokens of a text that enters in one pass."""
        with debias(self.model, self.method):
            ids = self._ids([*context, *continuation[:-1]])
            logits: Tensor = self.model(ids, use_cache=False, logits_to_keep=len(continuation)).logits[0]
        return logits

    def _ids(self, tokens: list[int]) -> Tensor:
        return torch.tensor([tokens], device=self.device)
