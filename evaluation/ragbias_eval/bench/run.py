"""Run a bench and write a folder of records and aggregates."""

from __future__ import annotations

from typing import Any

from rich.progress import Progress

from ragbias.generation.preparing import find_origin
from ragbias.lm import DebiasedLM
from ragbias.methods import NoMethod
from ragbias.readers import check_readers, reader_of
from ragbias_eval.bench.configuration import BenchConfiguration, describe_run
from ragbias_eval.bench.plan import BenchPlan, first_cases, run_unit
from ragbias_eval.cost import DECODED_TOKENS, measure_costs
from ragbias_eval.measures.aggregates import summarise_records
from ragbias_eval.measures.per_question import group_by
from ragbias_eval.runs import (
    COST,
    SUMMARY,
    Costs,
    Store,
    check_folder_contents,
    cost_key,
    holds_records,
    locked_store,
    read_costs,
)

COST_PROMPTS = 5  # rounds of the cost measurement, each with another prompt


class ModelLoader:
    """Load models by name, on a GPU if available. Only the last model remains loaded."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._lm: DebiasedLM | None = None

    def load(self, name: str) -> DebiasedLM:
        if self._lm is None or self._lm.name != name:
            self._lm = None  # two models may not fit into memory
            self._lm = DebiasedLM.from_pretrained(name, "none", dtype=self._dtype, device="auto")
        return self._lm


def run(settings: BenchConfiguration, bar: Progress) -> dict[str, Any]:
    """Run every batch of cases whose records are missing, and return the content of ``summary.json``.

    Settings that cannot run raise an error, if possible before files are written.
    """
    check_folder_contents(settings.out)
    plan = BenchPlan(settings)
    keys, noise_keys = plan.keys()
    models = ModelLoader(settings.dtype)
    if not holds_records(settings.out):
        _check_plan(plan, models)
    with locked_store(settings.out, describe_run(settings)) as store:
        _run_units(plan, models, store, bar, len(keys) + len(noise_keys))
        store.records.sort(keys)
        store.noise.sort(noise_keys)
        costs = _measure_missing_costs(plan, models, store, bar) if settings.cost else read_costs(store.folder)
        summary = summarise_records(list(store.records.by_key.values()), costs, list(store.noise.by_key.values()))
        store.write(SUMMARY, summary)
    return summary


def _check_plan(plan: BenchPlan, models: ModelLoader) -> None:
    """Load each model and prepare the longest prompt of each task, to find errors before a folder is created."""
    longest = [(task, max(task.cases(), key=lambda case: len(case.text))) for task, *_ in plan.tasks]
    for model in reversed(plan.settings.models):
        check_readers(plan.methods[model].values())
        lm = models.load(model)
        config = lm.model.config.get_text_config()
        for method in plan.methods[model].values():
            method.validate(config.hidden_size, config.num_hidden_layers)
            if method.reader:
                reader_of(lm.model, method, lm.name)  # raises an error if the reader is for another model
        for task, case in longest:
            lm.prepare(task.prompt(lm, case), documents=case.documents, method=NoMethod())


def _run_units(plan: BenchPlan, models: ModelLoader, store: Store, bar: Progress, total: int) -> None:
    """Run all methods with missing records.

    If a method lacks some records of a unit, run the whole unit with this method. A smaller batch would have other
    padding, which affects rounding.
    """
    stored = len(store.records.by_key) + len(store.noise.by_key)
    progress = bar.add_task("answering", total=total, completed=stored)
    for unit in plan.units():
        file = store.noise if unit.noise else store.records
        missing = unit.without_finished_methods(file.by_key)
        if missing.methods:
            name = f"{unit.model} {unit.task.name}{' again' if unit.noise else ''}"
            for records in run_unit(missing, models.load(unit.model)):
                bar.update(progress, advance=file.append(records), description=name)


def _measure_missing_costs(plan: BenchPlan, models: ModelLoader, store: Store, bar: Progress) -> Costs:
    """Measure the missing costs, if the prompts leave space for the decoded tokens. Return all costs."""
    costs = read_costs(store.folder)
    parts = [(model, task) for model in plan.methods for task, *_ in plan.tasks]
    progress = bar.add_task("cost", total=len(parts))
    for model, task in parts:
        several = (case for case in first_cases(task.cases(), COST_PROMPTS) if len(case.documents) > 1)
        for documents, cases in group_by(several, lambda case: len(case.documents)).items():
            name = cost_key(model, task.name, documents)
            if name not in costs:
                bar.update(progress, description=f"{model} {task.name} cost")
                lm = models.load(model)
                prompts = [find_origin(task.prompt(lm, case), case.documents, None).parts for case in cases]
                lengths = [len(lm.prepare(prompt, method=NoMethod()).tokens.ids) for prompt in prompts]
                if max(lengths) + DECODED_TOKENS < lm.window:
                    costs[name] = measure_costs(lm, prompts, plan.methods[model])
                    store.write(COST, costs)
        bar.update(progress, advance=1)
    return costs
