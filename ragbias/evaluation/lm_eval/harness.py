"""The model ``ragbias`` for lm-eval, to measure a method's side effects on benchmarks such as MMLU.

``python -m ragbias.evaluation.lm_eval.harness --model ragbias --model_args pretrained=tiny,method=ms-poe --tasks mmlu``
runs lm-eval's command line, which on its own does not find models of other packages.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from ragbias import debias, methods
from ragbias.display import shown
from ragbias.errors import RagBiasError, RunError
from ragbias.evaluation.data.records import Record
from ragbias.extras import required
from ragbias.generation.scoring import continued, prefilled
from ragbias.methods import Method
from ragbias.models import local_path

required("lm_eval.models.huggingface", "lm-eval")

from lm_eval import simple_evaluate  # noqa: E402
from lm_eval.api.registry import register_model  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

PREFERRED = ("acc", "exact_match", "score")  # preferred measures of a task; ``score`` is LongBench's
Scored = tuple[tuple[str, str] | None, list[int], list[int]]


@register_model("ragbias")
class RagBiasLM(HFLM):  # type: ignore[misc]  # lm-eval has no types
    """lm-eval's ``hf`` model with a method that needs no documents.

    Methods treat prompt and continuation differently, so continuations are scored as if they were generated: the
    context is the prompt and runs in one forward pass, and the continuation then runs with its cache. ``batch_size``
    applies only to generated answers. Choices of one token share the pass of their context. Whole texts (for
    perplexity) have no prompt and run in one pass.

    A prompt that is too long for the window loses its beginning, as in lm-eval, with a warning.

    Args:
        cut_middle: cut the middle of prompts that are too long, as LongBench does.
        settings: any other argument of lm-eval's ``hf`` model.

    Attributes:
        cut: for each shortened prompt, the number of its remaining tokens.
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
            usable = [name for name, method_class in methods.METHODS.items() if not method_class.needs_documents]
            raise RunError(
                f"{self.method.name} needs documents, and lm-eval's prompts have none; use a method that acts on any "
                f"prompt: {', '.join(usable)}"
            )
        path = local_path(pretrained)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        super().__init__(pretrained=path, backend="causal", device=device, **settings)
        with debias(self.model, self.method):  # raises if the method does not support the model
            pass

    def tok_batch_encode(
        self,
        strings: Sequence[str],
        padding_side: str = "left",
        left_truncate_len: int | None = None,
        truncation: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Tokenise prompts: ids and mask ``[len(strings), width]``, padded on the left. Cut long prompts."""
        ids, mask = super().tok_batch_encode(strings, padding_side, None, truncation)
        if left_truncate_len is None or ids.shape[1] <= left_truncate_len:
            return ids, mask
        cut = [
            self._cut(prompt, row[row_mask.bool()].tolist(), left_truncate_len)
            for prompt, row, row_mask in zip(strings, ids, mask, strict=True)
        ]
        padded = self.tokenizer.pad({"input_ids": cut}, padding_side="left", return_tensors="pt")
        return padded["input_ids"], padded["attention_mask"]

    def _cut(self, prompt: str, tokens: list[int], limit: int) -> list[int]:
        """Cut a prompt's tokens to at most ``limit``."""
        if len(tokens) <= limit:
            return tokens
        if not self.cut_middle and not self.cut:
            warnings.warn(
                f"a prompt has {len(tokens)} tokens, but only {limit} fit the model's window of {self.max_length}; "
                "prompts that are too long lose their beginning; cut_middle=True (ragbias bench --cut-middle) cuts "
                "their middle instead",
                stacklevel=2,
            )
        self.cut[prompt] = limit
        first = limit // 2 if self.cut_middle else 0
        return tokens[:first] + tokens[len(tokens) - (limit - first) :]

    def _model_generate(self, *args: Any, **settings: Any) -> Tensor:
        with debias(self.model, self.method):
            output: Tensor = super()._model_generate(*args, **settings)
            return output

    def _loglikelihood_tokens(
        self, requests: Sequence[Scored], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """Score each continuation: its log-probability, and whether greedy decoding would write it."""
        results = []
        first: tuple[list[int], Tensor] | None = None  # tokens of the last context and the logits after them
        for texts, context, continuation in track(requests, "Scoring continuations", disable=disable_tqdm):
            limit = self.max_length + 1 - len(continuation)
            if limit < 1:
                raise RunError(
                    f"a continuation of {len(continuation)} tokens leaves no tokens for its prompt in the model's "
                    f"window of {self.max_length}; use a model with a longer window"
                )
            if texts is not None:
                context = self._cut(texts[0], context, limit)
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
        """Compute the logits ``[len(continuation), V]`` of a continuation that runs after the prompt's pass."""
        with debias(self.model, self.method):
            return continued(self.model, *prefilled(self.model, context), continuation)

    @torch.no_grad()
    def _whole(self, context: list[int], continuation: list[int]) -> Tensor:
        """Compute the logits ``[len(continuation), V]`` at the end of a text that runs in one pass."""
        with debias(self.model, self.method):
            ids = torch.tensor([[*context, *continuation[:-1]]], device=self.device)
            logits: Tensor = self.model(ids, use_cache=False, logits_to_keep=len(continuation)).logits[0]
        return logits


def harness_records(
    model: str,
    method: Method,
    label: str,
    tasks: Sequence[str],
    limit: int | None = None,
    seed: int = 0,
    include_path: Path | None = None,
    cut_middle: bool = False,
) -> list[Record]:
    """Run tasks or groups of lm-eval and return a record per example. ``Record.group`` is a task of the group.

    ``label`` is the method's name in the records. ``limit`` is the number of examples of each task in a group. ``seed``
    draws the examples in few-shot prompts. ``include_path`` is a folder with further tasks as YAML files.
    """
    manager = task_manager(tasks, include_path)
    lm = RagBiasLM(model, method=method, cut_middle=cut_middle)
    return [record for task in tasks for record in _records_of(lm, manager, task, model, label, limit, seed)]


def task_manager(tasks: Sequence[str], include_path: Path | None) -> Any:
    """Index the tasks. If the folder defines all of them, skip lm-eval's own tasks, which are slow to index."""
    if include_path is not None:
        only_folder = TaskManager(include_path=str(include_path), include_defaults=False)
        if set(tasks) <= set(only_folder.all_tasks):
            return only_folder
    manager = TaskManager(include_path=None if include_path is None else str(include_path))
    if unknown := [task for task in tasks if task not in manager.all_tasks]:
        where = "" if include_path is None else f" nor in {include_path}"
        raise RunError(f"no task {', '.join(map(repr, unknown))} in lm-eval{where}; `lm-eval ls tasks` lists all tasks")
    return manager


def _records_of(
    lm: RagBiasLM, manager: Any, task: str, model: str, label: str, limit: int | None, seed: int
) -> Iterator[Record]:
    began = time.perf_counter()
    results = simple_evaluate(
        model=lm,
        tasks=[task],
        limit=limit,
        task_manager=manager,
        bootstrap_iters=0,
        random_seed=seed,
        numpy_random_seed=seed,
        torch_random_seed=seed,
        fewshot_random_seed=seed,
    )
    samples = {  # if a task has several filters, only the first one's
        (part, sample["doc_id"]): sample
        for part, part_samples in results["samples"].items()
        for sample in reversed(part_samples)
    }
    seconds = (time.perf_counter() - began) / max(len(samples), 1)
    measures = {
        part: _measure(part, part_samples, results["higher_is_better"].get(part, {}))
        for part, part_samples in results["samples"].items()
    }
    for (part, number), sample in sorted(samples.items()):
        prompt, prediction, prompt_tokens, completion_tokens = _answer(lm, sample)
        yield Record(
            id=f"{part}/{number}/{seed}",
            task=task,
            model=model,
            method=label,
            question=f"{part}/{number}",
            group=part,
            documents=0,
            gold_position=None,
            order=0,
            seed=seed,
            prediction=prediction,
            score=float(sample[measures[part]]),
            prompt_tokens=lm.cut.get(prompt, prompt_tokens),
            completion_tokens=completion_tokens,
            seconds=seconds,
            method_ran=lm.method.name,
            cut=("middle" if lm.cut_middle else "front") if prompt in lm.cut else "",
        )


def _answer(lm: RagBiasLM, sample: dict[str, Any]) -> tuple[str, str, int, int]:
    """Return the prompt of an example, the model's answer, and the number of tokens of each."""
    responses, arguments = sample["filtered_resps"], sample["arguments"]
    if isinstance(responses[0], str):
        prompt, answer = arguments[0][0], responses[0]
        return prompt, answer, len(lm.tok_encode(prompt)), len(lm.tok_encode(answer, add_special_tokens=False))
    best = max(range(len(responses)), key=lambda index: responses[index][0])
    prompt, choice = arguments[best]
    tokens, continuation = lm._encode_pair(prompt, choice)
    # a single continuation counts as the answer only if greedy decoding would write it
    likely = len(responses) > 1 or responses[0][1]
    return prompt, choice.strip() if likely else "", len(tokens), len(continuation)


def _measure(task: str, samples: Sequence[dict[str, Any]], higher_is_better: dict[str, bool]) -> str:
    """Select the measure that scores a task's examples: the first usable one, preferred measures first."""
    measured: list[str] = samples[0]["metrics"]
    reasons = {}
    for name in dict.fromkeys([*(name for name in PREFERRED if name in measured), *measured]):
        unusable = [
            sample[name]
            for sample in samples
            if not (isinstance(sample[name], (Real, np.bool_)) and 0 <= sample[name] <= 1)
        ]
        if unusable:
            value = shown(unusable[0]) if isinstance(unusable[0], Real) else f"a {type(unusable[0]).__name__}"
            reasons[name] = f"is {value} for an example"
        elif higher_is_better.get(name) is False:
            reasons[name] = "is better if lower"
        else:
            return name
    listed = "; ".join(f"{name} {reason}" for name, reason in reasons.items())
    raise RunError(
        f"task {task!r} has no usable measure: {listed}; expected a measure that gives each example a number from 0 to "
        "1, with higher values better"
    )


def main() -> None:
    """Run lm-eval's command line with the model ``ragbias``."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except (RagBiasError, ImportError) as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
