"""Run a bench: from its settings to a folder of records and their aggregates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.progress import Progress, TaskID

from ragbias.errors import MethodError
from ragbias.evaluation import HARNESS_TASK
from ragbias.evaluation.bench.configuration import BenchConfiguration, HarnessOptions
from ragbias.evaluation.bench.engines import Models, load_ray, run_by_ray, run_here
from ragbias.evaluation.bench.plan import Plan, Unit
from ragbias.evaluation.bench.store import RecordFile, Store, holds_records, plain_settings, refuse_other_contents
from ragbias.evaluation.cost import DECODED, measure_costs
from ragbias.evaluation.data.run_folder import COST, HARNESS, SUMMARY, Costs, cost_key, read_costs, read_counts
from ragbias.evaluation.measures.aggregates import summarise
from ragbias.evaluation.tasks.task import Case, Task
from ragbias.generation.request import in_parts
from ragbias.lm import DebiasedLM
from ragbias.methods import NoMethod
from ragbias.prompt import Prompt

COST_PROMPTS = 5  # for each number of documents; one in each round


def run(settings: BenchConfiguration, bar: Progress) -> dict[str, Any]:
    """Run what the folder does not hold yet; errors come before anything is written, where possible.

    Returns:
        the aggregates, as in ``summary.json``.
    """
    refuse_other_contents(settings.out)
    plan = Plan.of(settings)
    keys, noise_keys = plan.keys()
    models = Models(settings.dtype)
    if not holds_records(settings.out):
        _check(settings, plan, models)
    with Store(settings.out, plain_settings(settings)) as store:
        running = _Run(settings, plan, models, store, bar)
        running.answer(len(keys) + len(noise_keys))
        store.records.put_in_order(keys)
        store.noise.put_in_order(noise_keys)
        running.run_harness()
        costs = running.costs() if settings.cost else read_costs(store.folder)
        summary = summarise(list(store.records.by_key.values()), costs, list(store.noise.by_key.values()))
        store.write(SUMMARY, summary)
    return summary


def _check(settings: BenchConfiguration, plan: Plan, models: Models) -> None:
    """Fail before a folder is made: load each model, and prepare the prompts with the most characters."""
    if settings.engine == "ray":
        load_ray()
    for options in _harness_options(settings):
        from ragbias.evaluation.lm_eval.harness import task_manager

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
            config = lm.model.config.get_text_config()
            try:
                method.validate(config.hidden_size, config.num_hidden_layers)
            except MethodError as error:
                raise MethodError(f"method {label}, model {lm.name}: {error}") from error
        for task, case in longest:
            lm.prepare(task.prompt(lm, case), documents=case.documents, method=NoMethod())


def _harness_options(settings: BenchConfiguration) -> list[HarnessOptions]:
    return [HarnessOptions.model_validate(task.options) for task in settings.tasks if task.name == HARNESS_TASK]


@dataclass(frozen=True)
class _Run:
    """A run with an open folder; every step adds only what the folder lacks."""

    settings: BenchConfiguration
    plan: Plan
    models: Models
    store: Store
    bar: Progress

    def answer(self, total: int) -> None:
        """Run the units with missing records."""
        progress = self.bar.add_task("answering", total=total)
        missing = self._missing(progress)
        if self.settings.engine == "ray":
            found = run_by_ray(missing, self.settings.dtype, self.settings.workers)
        else:
            found = run_here(missing, self.models)
        for unit, records in found:
            name = f"{unit.model} {unit.task.name}{' again' if unit.noise else ''}"
            self.bar.update(progress, advance=self._file(unit).append(records), description=name)

    def _file(self, unit: Unit) -> RecordFile:
        return self.store.noise if unit.noise else self.store.records

    def _missing(self, progress: TaskID) -> Iterator[Unit]:
        """The units with missing records. They stay whole, because padding affects the last digits."""
        for unit in self.plan.units():
            found = self._file(unit).by_key
            advance = sum(key in found for label in unit.methods for key in unit.keys(label))
            self.bar.update(progress, advance=advance)
            left = unit.without(found)
            if left.methods:
                yield left

    def run_harness(self) -> None:
        """Run lm-eval's tasks: all of a model, method and seed at once, so only whole parts resume."""
        counts = read_counts(self.store.folder)
        for options in _harness_options(self.settings):
            from ragbias.evaluation.lm_eval.harness import harness_records

            limit = options.limit or self.settings.limit
            parts = [
                (model, seed, *each)
                for model, methods in self.plan.methods.items()
                for seed in self.settings.seeds
                for each in methods.items()
            ]
            progress = self.bar.add_task(HARNESS_TASK, total=len(parts))
            for model, seed, label, method in parts:
                self.bar.update(progress, description=f"{model} {HARNESS_TASK}")
                part = f"{model}|{label}|{seed}"
                stored = sum(
                    record.task in options.tasks and (record.model, record.method, record.seed) == (model, label, seed)
                    for record in self.store.records.by_key.values()
                )
                if counts.get(part) != stored:
                    found = harness_records(
                        model, method, label, options.tasks, limit, seed, options.include_path, options.cut_middle
                    )
                    counts[part] = len(found)
                    self.store.write(HARNESS, counts)  # before the records, to show whether those were cut off
                    self.store.records.append(found)
                self.bar.update(progress, advance=1)

    def costs(self) -> Costs:
        """Costs by ``cost_key`` and label; costs missing from the folder are measured."""
        found = read_costs(self.store.folder)
        parts = [(model, task) for model in self.plan.methods for task, *_ in self.plan.tasks]
        progress = self.bar.add_task("cost", total=len(parts))
        for model, task in parts:
            for documents, cases in _typical(task).items():
                name = cost_key(model, task.name, documents)
                if name not in found:
                    self.bar.update(progress, description=f"{model} {task.name} cost")
                    lm = self.models.load(model)
                    if prompts := [prompt for case in cases if (prompt := _prompt(lm, task, case))]:
                        costs = measure_costs(lm, prompts, self.plan.methods[model])
                        found[name] = {label: cost.as_dict() for label, cost in costs.items()}
                        self.store.write(COST, found)
            self.bar.update(progress, advance=1)
        return found


def _typical(task: Task) -> dict[int, list[Case]]:
    """One case of each of the first questions, by number of documents, of which there are two or more."""
    found: dict[int, dict[str, Case]] = {}
    for case in task.cases():
        if len(case.documents) > 1:
            chosen = found.setdefault(len(case.documents), {})
            if len(chosen) < COST_PROMPTS:
                chosen.setdefault(case.question, case)
    return {documents: list(chosen.values()) for documents, chosen in found.items()}


def _prompt(lm: DebiasedLM, task: Task, case: Case) -> Prompt | None:
    """The prompt in parts; None if the window is too short to time decoding."""
    prompt, *_ = in_parts(task.prompt(lm, case), case.documents, None)
    length = len(lm.prepare(prompt, method=NoMethod()).tokens.ids)
    return prompt if length + DECODED < lm.window else None
