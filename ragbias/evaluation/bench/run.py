"""Running a bench: from its settings to a folder of records and their aggregates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.progress import Progress, TaskID

from ragbias.errors import MethodError
from ragbias.evaluation.bench import local_engine, ray_engine
from ragbias.evaluation.bench.configuration import BenchConfiguration, HarnessOptions
from ragbias.evaluation.bench.local_engine import Models
from ragbias.evaluation.bench.plan import Plan, Unit
from ragbias.evaluation.bench.provenance import check_model, described
from ragbias.evaluation.bench.store import RecordFile, Store, holds_records, refuse_other_contents
from ragbias.evaluation.cost.generation_cost import DECODED, measure_costs
from ragbias.evaluation.data.run_folder import (
    COST,
    HARNESS,
    SUMMARY,
    Costs,
    cost_key,
    read_costs,
    read_counts,
)
from ragbias.evaluation.measures.aggregates import summarise
from ragbias.evaluation.names import HARNESS_TASK
from ragbias.evaluation.tasks.task import Case, Task
from ragbias.generation.request import in_parts
from ragbias.lm import DebiasedLM
from ragbias.methods import Method, NoMethod
from ragbias.prompt import Prompt

COST_PROMPTS = 5  # for each number of documents; one in each round


def run(settings: BenchConfiguration, bar: Progress) -> dict[str, Any]:
    """Run what the folder does not hold yet.

    Returns:
        the aggregates, as in ``summary.json``.

    Raises:
        RunError, DataError, MethodError, UnknownMethodError: before anything is written, where that can be known.
    """
    refuse_other_contents(settings.out)
    for model in settings.models:
        check_model(model)
    plan = Plan.of(settings)
    keys, noise_keys = plan.keys()
    models = Models(settings.dtype)
    if not holds_records(settings.out):
        _try(settings, plan, models)
    with Store(settings.out, described(settings)) as store:
        _answer(plan, store, settings, models, bar, len(keys) + len(noise_keys))
        store.records.put_in_order(keys)
        store.noise.put_in_order(noise_keys)
        _run_harness(settings, plan, store, bar)
        costs = _costs(plan, store, models, bar) if settings.cost else read_costs(store.folder)
        summary = summarise(list(store.records.by_key.values()), costs, list(store.noise.by_key.values()))
        store.write(SUMMARY, summary)
    return summary


def _try(settings: BenchConfiguration, plan: Plan, models: Models) -> None:
    """Fail before a folder is made over what is missing or does not fit; the first model stays loaded.

    Raises:
        RunError: a model cannot be loaded, or lm-eval has no such task.
        MissingExtraError: of the engine, or of lm-eval.
        MethodError: a method does not fit a model.
        PromptTooLongError: of the prompt that has the most letters; as the others of ``DebiasedLM.prepare``.
    """
    if settings.engine == "ray":
        ray_engine.load_ray()
    for task in settings.tasks:
        if task.name == HARNESS_TASK:
            from ragbias.evaluation.lm_eval.harness import task_manager

            options = HarnessOptions.model_validate(task.options)
            task_manager(options.tasks, options.include_path)
    longest = [(task, max(task.cases(), key=lambda case: len(case.text))) for task, *_ in plan.tasks]
    for model in reversed(settings.models):
        # to the CPU for ray, whose workers need the GPU
        lm = (
            DebiasedLM.from_pretrained(model, "none", dtype=settings.dtype)
            if settings.engine == "ray"
            else models.load(model)
        )
        for label, method in plan.methods[model].items():
            _validate(label, method, lm)
        for asked, case in longest:
            lm.prepare(asked.prompt(lm, case), documents=case.documents, method=NoMethod())


def _validate(label: str, method: Method, lm: DebiasedLM) -> None:
    config = lm.model.config.get_text_config()
    try:
        method.validate(config.hidden_size, config.num_hidden_layers)
    except MethodError as error:
        raise MethodError(f"method {label}, model {lm.name}: {error}") from error


def _answer(plan: Plan, store: Store, settings: BenchConfiguration, models: Models, bar: Progress, total: int) -> None:
    """Run the units that the store lacks."""
    progress = bar.add_task("answering", total=total)
    missing = _missing(plan, store, bar, progress)
    if settings.engine == "ray":
        found = ray_engine.answered(missing, settings.dtype, settings.workers)
    else:
        found = local_engine.answered(missing, models)
    for unit, records in found:
        name = f"{unit.model} {unit.task.name}{' again' if unit.noise else ''}"
        new = _file(store, unit).append(records)
        bar.update(progress, advance=new, description=name)


def _file(store: Store, unit: Unit) -> RecordFile:
    return store.noise if unit.noise else store.records


def _missing(plan: Plan, store: Store, bar: Progress, progress: TaskID) -> Iterator[Unit]:
    """The units with missing records; whole, since the padding decides the last digits of the sums."""
    for unit in plan.units():
        held = _file(store, unit).by_key
        bar.update(progress, advance=sum(key in held for label in unit.methods for key in unit.keys(label)))
        left = unit.without(held)
        if left.methods:
            yield left


def _run_harness(settings: BenchConfiguration, plan: Plan, store: Store, bar: Progress) -> None:
    """What lm-eval runs: all of a model, method and seed at once, so only whole parts are resumed."""
    counts = read_counts(store.folder)
    for task in settings.tasks:
        if task.name != HARNESS_TASK:
            continue
        from ragbias.evaluation.lm_eval.harness import harness_records

        options = HarnessOptions.model_validate(task.options)
        limit = options.limit or settings.limit
        parts = [
            (model, seed, *each)
            for model, methods in plan.methods.items()
            for seed in settings.seeds
            for each in methods.items()
        ]
        progress = bar.add_task(HARNESS_TASK, total=len(parts))
        for model, seed, label, method in parts:
            bar.update(progress, description=f"{model} {HARNESS_TASK}")
            part = f"{model}|{label}|{seed}"
            held = sum(
                record.task in options.tasks and (record.model, record.method, record.seed) == (model, label, seed)
                for record in store.records.by_key.values()
            )
            if counts.get(part) != held:
                found = harness_records(
                    model, method, label, options.tasks, limit, seed, options.include_path, options.cut_middle
                )
                counts[part] = len(found)
                store.write(HARNESS, counts)  # before the records: if those are cut off, their number tells
                store.records.append(found)
            bar.update(progress, advance=1)


def _costs(plan: Plan, store: Store, models: Models, bar: Progress) -> Costs:
    """The costs by ``cost_key`` and label; measures those that the folder lacks."""
    found = read_costs(store.folder)
    parts = [(model, task) for model in plan.methods for task, *_ in plan.tasks]
    progress = bar.add_task("cost", total=len(parts))
    for model, task in parts:
        for documents, cases in _typical(task).items():
            name = cost_key(model, task.name, documents)
            if name not in found:
                bar.update(progress, description=f"{model} {task.name} cost")
                lm = models.load(model)
                if prompts := [prompt for case in cases if (prompt := _prompt(lm, task, case))]:
                    costs = measure_costs(lm, prompts, plan.methods[model])
                    found[name] = {label: cost.as_dict() for label, cost in costs.items()}
                    store.write(COST, found)
        bar.update(progress, advance=1)
    return found


def _typical(task: Task) -> dict[int, list[Case]]:
    """A case of each of the first questions, by the number of documents; none with the gold document alone."""
    found: dict[int, dict[str, Case]] = {}
    for case in task.cases():
        if len(case.documents) > 1:
            chosen = found.setdefault(len(case.documents), {})
            if len(chosen) < COST_PROMPTS:
                chosen.setdefault(case.question, case)
    return {documents: list(chosen.values()) for documents, chosen in found.items()}


def _prompt(lm: DebiasedLM, task: Task, case: Case) -> Prompt | None:
    """The prompt in parts; None where the window leaves no room to time decoding."""
    prompt, *_ = in_parts(task.prompt(lm, case), case.documents, None)
    length = len(lm.prepare(prompt, method=NoMethod()).tokens.ids)
    return prompt if length + DECODED < lm.window else None
