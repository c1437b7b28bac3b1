"""The bench: run all models with all methods on all tasks, and write a record per answer. A run can resume.

A bench is divided into units: batches of cases. The order of units is fixed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import Any

from rich.progress import Progress

from ragbias.errors import RagBiasError, RunError
from ragbias.generation.preparing import split_prompt
from ragbias.generation.scoring import kl
from ragbias.lm import DebiasedLM
from ragbias.methods import Method, NoMethod, parse_methods
from ragbias.readers import check_readers, reader_of
from ragbias_eval import ACCURACY, LOGPROB
from ragbias_eval.bench_settings import BenchSettings, describe_run
from ragbias_eval.cost import DECODED_TOKENS, measure_costs
from ragbias_eval.measures.aggregates import summarise_records
from ragbias_eval.measures.per_question import group_by
from ragbias_eval.runs import (
    COST,
    SUMMARY,
    Costs,
    Key,
    Record,
    Store,
    check_folder_contents,
    cost_key,
    holds_records,
    locked_store,
    read_costs,
)
from ragbias_eval.tasks.task import Answer, Case, GoldScore, Task, alphabetical_ranks, score_gold

NOISE_QUESTIONS = 50  # questions to repeat, per task, seed and number of documents
COST_PROMPTS = 5  # rounds of the cost measurement, each with another prompt


@dataclass(frozen=True)
class Unit:
    """A batch of cases that runs with each method in turn, which makes the methods' times comparable."""

    model: str
    task: Task
    cases: tuple[Case, ...]
    methods: Mapping[str, Method]  # by label
    batch_size: int
    measures: tuple[str, ...] = (ACCURACY,)
    noise: bool = False  # whether the unit repeats one case, to measure how often answers change at random
    invariant_once: bool = False  # see ``BenchSettings``

    def source_indices(self, method: Method) -> list[int]:
        """Return, for each case, the index of the case whose answer it gets.

        Usually, a case gets its own answer. If ``invariant_once`` is set and the method is order-invariant, a case gets
        the answer of the first case with the same question, seed and documents.
        """
        if not (self.invariant_once and method.invariant):
            return list(range(len(self.cases)))
        first: dict[tuple[object, ...], int] = {}
        same = ((case.question, case.seed, *sorted(case.documents)) for case in self.cases)
        return [first.setdefault(documents, index) for index, documents in enumerate(same)]

    def keys(self, label: str) -> list[Key]:
        return [(self.task.name, self.model, label, case.id) for case in self.cases]


def run_unit(unit: Unit, lm: DebiasedLM) -> Iterator[list[Record]]:
    """Run the unit. Yield a list of records for each method."""
    plain: list[GoldScore] = []  # the scores to which all methods are compared
    for label, method in unit.methods.items():
        sources = unit.source_indices(method)
        distinct = dict.fromkeys(sources)
        cases = [unit.cases[index] for index in distinct]
        answers: list[Answer] = []
        golds: list[GoldScore] = []
        begin = time.perf_counter()
        try:
            if ACCURACY in unit.measures:
                answers = unit.task.answers(lm, cases, method, unit.batch_size)
            seconds = (time.perf_counter() - begin) / len(cases)
            if LOGPROB in unit.measures:
                plain = plain or [score_gold(lm, unit.task, case, NoMethod()) for case in unit.cases]
                golds = plain if method == NoMethod() else [score_gold(lm, unit.task, case, method) for case in cases]
        except RagBiasError as error:
            where = f"task {unit.task.name}, method {label}, batch of case {unit.cases[0].id!r}"
            raise type(error)(f"{where}: {error}") from error
        results = dict(zip(distinct, zip_longest(answers, golds), strict=True))  # None for a missing measure
        yield [
            _build_record(unit, label, index, source, *results[source], seconds, plain)
            for index, source in enumerate(sources)
        ]


def _build_record(
    unit: Unit, label: str, index: int, source: int, written: Answer | None, gold: GoldScore | None, seconds: float,
    plain: Sequence[GoldScore],
) -> Record:  # fmt: skip
    """Build the record of case ``index`` from the results of case ``source`` and the plain model's scores."""
    case = unit.cases[index]
    ran = unit.cases[source]
    answer = written or (gold.answer if gold else None)
    assert answer is not None  # a unit has at least one measure
    unchanged = range(len(ran.documents)) if unit.methods[label].is_plain else ()
    return Record(
        id=case.id,
        task=unit.task.name,
        model=unit.model,
        method=label,
        question=case.question,
        group=case.group,
        documents=len(case.documents),
        gold_position=case.gold_position,
        order=case.order,
        seed=case.seed,
        prediction=answer.prediction,
        score=unit.task.score(case, answer.prediction) if written else None,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        seconds=seconds + (gold.seconds if gold else 0.0),
        method_ran=answer.report.method_ran,
        reason=answer.report.reason,
        shown=alphabetical_ranks(ran.contents or ran.documents, answer.report.order or unchanged),
        logprob=gold.logprob if gold else None,
        answer_tokens=gold.tokens if gold else None,
        kl=kl(plain[index].next_token, gold.next_token) if gold else None,
        agrees=bool(gold.next_token.argmax() == plain[index].next_token.argmax()) if gold else None,
        shorten=case.shorten,
        copied=index != source,
    )


class BenchPlan:
    """All units of a run. The constructor raises ``RunError`` if a task does not support the measure ``logprob``.

    Attributes:
        methods: methods of each model, by label.
        tasks: for each task of the settings, a list with one task per seed.
    """

    def __init__(self, settings: BenchSettings) -> None:
        self.settings = settings
        self.methods = {model: parse_methods(settings.methods, model) for model in settings.models}
        self.tasks: list[list[Task]] = []
        for options in settings.tasks:
            seeds = settings.seeds if options.uses_seeds else settings.seeds[:1]
            self.tasks.append([options.make(seed, settings.limit) for seed in seeds])
        for task, *_ in self.tasks:
            if LOGPROB in settings.measure and not task.answers_at_once:
                raise RunError(
                    f"task {task.name!r} lets the model explain itself before its answer, so the answer does not "
                    f"directly follow the prompt; set explain: false in a YAML file, or measure {ACCURACY!r}"
                )

    def units(self) -> Iterator[Unit]:
        """Yield all units in order. To save memory, each call reads the data files again."""
        size, measures = self.settings.batch_size, self.settings.measure
        once = self.settings.invariant_once
        for model, methods in self.methods.items():
            for task, cases in self._cases_by_task():
                while batch := tuple(islice(cases, size)):
                    yield Unit(model, task, batch, methods, size, measures, invariant_once=once)
            if ACCURACY not in measures:
                continue
            for task, cases in self._cases_by_task():
                for case in first_cases(cases, NOISE_QUESTIONS):
                    yield Unit(model, task, (case,), methods, 1, noise=True)

    def _cases_by_task(self) -> Iterator[tuple[Task, Iterator[Case]]]:
        """Yield each task with its cases, for each seed. Cases that do not depend on the seed appear only once."""
        for seeded in self.tasks:
            seen: set[str] = set()
            for task in seeded:
                yield task, _new_cases(task, seen)

    def keys(self) -> tuple[list[Key], list[Key]]:
        """Return the keys of all records and of all noise records, in order. Raise ``RunError`` for repeated cases."""
        keys: dict[Key, None] = {}
        noise_keys: dict[Key, None] = {}
        for unit in self.units():
            known = noise_keys if unit.noise else keys
            for label in unit.methods:
                for key in unit.keys(label):
                    if key in known:
                        raise RunError(
                            f"task {key[0]!r} has the case {key[3]!r} twice; name each task once, and use another "
                            "folder for other options"
                        )
                    known[key] = None
        return list(keys), list(noise_keys)


def _new_cases(task: Task, seen: set[str]) -> Iterator[Case]:
    """Yield the cases whose ids are not in ``seen``, and add their ids."""
    for case in task.cases():
        if case.id not in seen:
            seen.add(case.id)
            yield case


def first_cases(cases: Iterable[Case], count: int) -> Iterator[Case]:
    """For each number of documents, yield one case for each of the first ``count`` questions."""
    seen: dict[int, set[str]] = {}
    for case in cases:
        questions = seen.setdefault(len(case.documents), set())
        if case.question not in questions and len(questions) < count:
            questions.add(case.question)
            yield case


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


def run(settings: BenchSettings, bar: Progress) -> dict[str, Any]:
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
        missing = {label: method for label, method in unit.methods.items() if not file.holds(unit.keys(label))}
        if missing:
            name = f"{unit.model} {unit.task.name}{' again' if unit.noise else ''}"
            for records in run_unit(replace(unit, methods=missing), models.load(unit.model)):
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
                prompts = [split_prompt(task.prompt(lm, case), case.documents).parts for case in cases]
                lengths = [len(lm.prepare(prompt, method=NoMethod()).tokens.ids) for prompt in prompts]
                if max(lengths) + DECODED_TOKENS < lm.window:
                    costs[name] = measure_costs(lm, prompts, plan.methods[model])
                    store.write(COST, costs)
        bar.update(progress, advance=1)
    return costs
