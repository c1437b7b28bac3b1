"""Side effects on ordinary benchmarks, MMLU above all: lm-eval's tasks with the model ``ragbias``.

``python -m ragbias.evaluation.lm_eval.harness --model ragbias --model_args pretrained=tiny,method=ms-poe --tasks mmlu``
is the command line of lm-eval, which by itself finds no models of other packages.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragbias.errors import RagBiasError, RunError
from ragbias.evaluation.data.records import Record
from ragbias.evaluation.extras import required
from ragbias.methods import Method

if TYPE_CHECKING:
    from ragbias.evaluation.lm_eval.model import RagBiasLM

SCORES = ("acc", "exact_match")  # measures of one example, 0 to 1


def harness_records(
    model: str,
    method: Method,
    label: str,
    tasks: Sequence[str],
    limit: int | None = None,
    seed: int = 0,
    include_path: Path | None = None,
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

    Raises:
        RunError: the method needs documents, which lm-eval's prompts do not have; no task has this name; or a task
            measures neither accuracy nor exact matches.
        MissingExtraError: lm-eval is not installed.
    """
    lm_class = model_class()
    manager = task_manager(tasks, include_path)
    lm = lm_class(model, method=method)
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
    for (part, number), sample in sorted(samples.items()):
        prediction, prompt_tokens, completion_tokens = _answer(lm, sample)
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
            score=_score(part, sample),
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            seconds=seconds,
            method_ran=lm.method.name,
        )


def _answer(lm: RagBiasLM, sample: dict[str, Any]) -> tuple[str, int, int]:
    """The model's answer to an example, and the number of tokens of the prompt and of the answer."""
    said, arguments = sample["filtered_resps"], sample["arguments"]
    if isinstance(said[0], str):
        answer = lm.tok_encode(said[0], add_special_tokens=False)
        return said[0], len(lm.tok_encode(arguments[0][0])), len(answer)
    best = max(range(len(said)), key=lambda index: said[index][0])
    prompt, continuation = lm._encode_pair(*arguments[best])
    likely = len(said) > 1 or said[0][1]  # a single continuation is an answer if greedy decoding writes it
    return arguments[best][1].strip() if likely else "", len(prompt), len(continuation)


def _score(task: str, sample: dict[str, Any]) -> float:
    for name in SCORES:
        if name in sample["metrics"]:
            return float(sample[name])
    raise RunError(f"task {task!r} measures {', '.join(sample['metrics'])}; expected one of {', '.join(SCORES)}")


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
