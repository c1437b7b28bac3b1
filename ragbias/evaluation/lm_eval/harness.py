"""Side effects on ordinary benchmarks, MMLU above all: lm-eval's tasks with the model ``ragbias``.

``python -m ragbias.evaluation.lm_eval.harness --model ragbias --model_args pretrained=tiny,method=ms-poe --tasks mmlu``
is the command line of lm-eval, which by itself finds no models of other packages.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ragbias.display import shown
from ragbias.errors import RagBiasError, RunError
from ragbias.evaluation.data.records import Record
from ragbias.extras import required
from ragbias.methods import Method

if TYPE_CHECKING:
    from ragbias.evaluation.lm_eval.model import RagBiasLM

PREFERRED = ("acc", "exact_match", "score")  # of the measures that a task reports; ``score`` is LongBench's


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
    """Run tasks of lm-eval; one record for each example.

    Args:
        model: ``"tiny"``, a hub name or a path.
        label: the method as the records name it.
        tasks: names of tasks or groups of lm-eval; a record's ``task`` is this name, its ``group`` the task in the
            group.
        limit: number of examples of each task in a group, the first ones; default: all.
        seed: of the examples that lm-eval draws for few-shot prompts.
        include_path: a folder with more tasks, as YAML files.
        cut_middle: what prompts lose that are longer than the window: their middle, not their beginning.

    Raises:
        RunError: the method needs documents, which lm-eval's prompts do not have; no task has this name; or a task
            has no measure of one example from 0 to 1.
        MissingExtraError: lm-eval is not installed.
    """
    lm_class = model_class()
    manager = task_manager(tasks, include_path)
    lm = lm_class(model, method=method, cut_middle=cut_middle)
    return [record for task in tasks for record in _records_of(lm, manager, task, model, label, limit, seed)]


def model_class() -> type[RagBiasLM]:
    """The model ``ragbias`` of lm-eval, registered there.

    Raises:
        MissingExtraError: lm-eval is not installed.
    """
    required("lm_eval.models.huggingface", "lm-eval")
    from ragbias.evaluation.lm_eval.model import RagBiasLM

    return RagBiasLM


def task_manager(tasks: Sequence[str], include_path: Path | None) -> Any:
    """lm-eval's index of tasks: a folder's own if it has them all, since lm-eval's thousands take long to list.

    Raises:
        RunError: no task has this name.
        MissingExtraError: lm-eval is not installed.
    """
    required("lm_eval.tasks", "lm-eval")
    from lm_eval.tasks import TaskManager

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
    from lm_eval import simple_evaluate

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
    said, arguments = sample["filtered_resps"], sample["arguments"]
    if isinstance(said[0], str):
        prompt, answer = arguments[0][0], said[0]
        return prompt, answer, len(lm.tok_encode(prompt)), len(lm.tok_encode(answer, add_special_tokens=False))
    best = max(range(len(said)), key=lambda index: said[index][0])
    prompt, choice = arguments[best]
    tokens, continuation = lm._encode_pair(prompt, choice)
    likely = len(said) > 1 or said[0][1]  # a single continuation is an answer if greedy decoding writes it
    return prompt, choice.strip() if likely else "", len(tokens), len(continuation)


def _measure(task: str, samples: Sequence[dict[str, Any]], higher_is_better: dict[str, bool]) -> str:
    """The measure that scores a task's examples: the first of the preferred ones and of the others that can.

    Raises:
        RunError: none is a number from 0 to 1, the higher the better.
    """
    measured: list[str] = samples[0]["metrics"]
    reasons = {}
    for name in dict.fromkeys([*(each for each in PREFERRED if each in measured), *measured]):
        wrong = [sample[name] for sample in samples if not _from_0_to_1(sample[name])]
        if not wrong and higher_is_better.get(name) is not False:
            return name
        reasons[name] = f"is {_named(wrong[0])} for an example" if wrong else "is better the lower it is"
    found = "; ".join(f"{name} {reason}" for name, reason in reasons.items())
    raise RunError(
        f"task {task!r} has no measure that can be used: {found}; expected one that is a number from 0 to 1 of each "
        "example, the higher the better"
    )


def _from_0_to_1(value: Any) -> bool:
    is_number = isinstance(value, (Real, np.bool_))
    return is_number and bool(0 <= value <= 1)


def _named(value: Any) -> str:
    """A number; of anything else, which may hold text, only what it is."""
    return shown(value) if isinstance(value, Real) else f"a {type(value).__name__}"


def main() -> None:
    """The command line of lm-eval, with the model ``ragbias``."""
    try:
        model_class()
        from lm_eval.__main__ import cli_evaluate

        cli_evaluate()
    except (RagBiasError, ImportError) as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
