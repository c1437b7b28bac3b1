"""Side effects on ordinary benchmarks, MMLU above all: lm-eval's tasks with the model ``ragbias``.

``python -m ragbias.evaluation.lm_eval.harness --model ragbias --model_args pretrained=tiny,method=ms-poe --tasks mmlu``
is the command line of lm-eval, which by itself finds no models of other packages.
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

PREFERRED = ("acc", "exact_match", "score")  # of the measures that a task reports; ``score`` is LongBench's
Scored = tuple[tuple[str, str] | None, list[int], list[int]]


@register_model("ragbias")
class RagBiasLM(HFLM):  # type: ignore[misc]  # lm-eval has no types
    """lm-eval's ``hf`` model with a method, for the side effects of methods that need no documents.

    Continuations are scored as they would be generated: the context is the prompt and enters in one forward pass, the
    continuation follows with the cache, since methods treat the two differently. Prompts run one at a time, whatever
    the ``batch_size``, except for generated answers; choices of one token share the pass of their context. Whole texts
    (for perplexity) have no prompt, and enter in one pass.

    A prompt too long for the window loses its beginning, as in lm-eval, with a warning.

    Args:
        cut_middle: cut the middle of such a prompt instead, as LongBench does.
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
        cut = [
            self._cut(prompt, own[seen.bool()].tolist(), left_truncate_len)
            for prompt, own, seen in zip(strings, ids, mask, strict=True)
        ]
        padded = self.tokenizer.pad({"input_ids": cut}, padding_side="left", return_tensors="pt")
        return padded["input_ids"], padded["attention_mask"]

    def _cut(self, prompt: str, tokens: list[int], limit: int) -> list[int]:
        """At most ``limit`` of a prompt's tokens."""
        if len(tokens) <= limit:
            return tokens
        if not self.cut_middle and not self.cut:
            warnings.warn(
                f"a prompt of {len(tokens)} tokens is longer than the {limit} that fit the model's window of "
                f"{self.max_length}, so it loses its beginning, like all longer ones; cut_middle=True (ragbias bench "
                "--cut-middle) cuts its middle instead",
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
        """Log-probability of each continuation, and whether it is what greedy decoding would write."""
        results = []
        first: tuple[list[int], Tensor] | None = None  # of the last context: its tokens, the logits after them
        for texts, context, continuation in track(requests, "Scoring continuations", disable=disable_tqdm):
            limit = self.max_length + 1 - len(continuation)
            if limit < 1:
                raise RunError(
                    f"a continuation of {len(continuation)} tokens leaves no tokens for its prompt in the model's "
                    f"window of {self.max_length}; take a model with a longer one"
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
        """Logits ``[len(continuation), V]`` for the tokens of a continuation, which follows the prompt's pass."""
        with debias(self.model, self.method):
            return continued(self.model, *prefilled(self.model, context), continuation)

    @torch.no_grad()
    def _whole(self, context: list[int], continuation: list[int]) -> Tensor:
        """Logits ``[len(continuation), V]`` for the tokens of a text that enters in one pass."""
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
    """Run tasks or groups of lm-eval; one record for each example, whose ``group`` is the task in the group.

    ``label`` is the method's name in the records; ``limit`` counts examples of each task in a group; ``seed`` draws the
    examples of few-shot prompts; ``include_path`` is a folder with more tasks, as YAML files.
    """
    manager = task_manager(tasks, include_path)
    lm = RagBiasLM(model, method=method, cut_middle=cut_middle)
    return [record for task in tasks for record in _records_of(lm, manager, task, model, label, limit, seed)]


def task_manager(tasks: Sequence[str], include_path: Path | None) -> Any:
    """lm-eval's task index: only the folder's if it has all tasks, because lm-eval's take long to list."""
    if include_path is not None:
        own = TaskManager(include_path=str(include_path), include_defaults=False)
        if set(tasks) <= set(own.all_tasks):
            return own
    manager = TaskManager(include_path=None if include_path is None else str(include_path))
    if unknown := [task for task in tasks if task not in manager.all_tasks]:
        where = "" if include_path is None else f" nor in {include_path}"
        raise RunError(f"no task {', '.join(map(repr, unknown))} in lm-eval{where}; `lm-eval ls tasks` lists all")
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
    samples = {  # the first filter's, where a task has several
        (part, sample["doc_id"]): sample
        for part, all_of_it in results["samples"].items()
        for sample in reversed(all_of_it)
    }
    seconds = (time.perf_counter() - began) / max(len(samples), 1)
    measures = {
        part: _measure(part, all_of_it, results["higher_is_better"].get(part, {}))
        for part, all_of_it in results["samples"].items()
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
    """The prompt of an example, the model's answer, and the number of tokens of both."""
    responses, arguments = sample["filtered_resps"], sample["arguments"]
    if isinstance(responses[0], str):
        prompt, answer = arguments[0][0], responses[0]
        return prompt, answer, len(lm.tok_encode(prompt)), len(lm.tok_encode(answer, add_special_tokens=False))
    best = max(range(len(responses)), key=lambda index: responses[index][0])
    prompt, choice = arguments[best]
    tokens, continuation = lm._encode_pair(prompt, choice)
    likely = len(responses) > 1 or responses[0][1]  # a single continuation is an answer if greedy decoding writes it
    return prompt, choice.strip() if likely else "", len(tokens), len(continuation)


def _measure(task: str, samples: Sequence[dict[str, Any]], higher_is_better: dict[str, bool]) -> str:
    """The measure that scores a task's examples: a preferred one if usable, else the first usable one."""
    measured: list[str] = samples[0]["metrics"]
    reasons = {}
    for name in dict.fromkeys([*(each for each in PREFERRED if each in measured), *measured]):
        wrong = [
            sample[name]
            for sample in samples
            if not (isinstance(sample[name], (Real, np.bool_)) and 0 <= sample[name] <= 1)
        ]
        if wrong:
            value = shown(wrong[0]) if isinstance(wrong[0], Real) else f"a {type(wrong[0]).__name__}"
            reasons[name] = f"is {value} for an example"
        elif higher_is_better.get(name) is False:
            reasons[name] = "is better the lower it is"
        else:
            return name
    found = "; ".join(f"{name} {reason}" for name, reason in reasons.items())
    raise RunError(
        f"task {task!r} has no measure that can be used: {found}; expected one that is a number from 0 to 1 of each "
        "example, the higher the better"
    )


def main() -> None:
    """The command line of lm-eval, with the model ``ragbias``."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except (RagBiasError, ImportError) as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
