"""Calibration sets: questions with one gold document among others, to be asked with the gold one at several depths."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ragbias.calibration.calibration_settings import Plan
from ragbias.errors import MethodError
from ragbias.evaluation.data.jsonl import Line, read_lines
from ragbias.evaluation.data.questions import question_of
from ragbias.evaluation.measures.by_position import Example, split
from ragbias.evaluation.tasks.orders import evenly_spread
from ragbias.lm import DebiasedLM
from ragbias.models.tiny.cases import FORMAT
from ragbias.models.tiny.world import ask, sample_entries
from ragbias.prompt import TokenisedPrompt, tokenise

MAX_PAIRS = 75  # as in the smallest set of Liu et al., Lost in the Middle, arXiv 2307.03172
ROOM = 200  # tokens kept free for instruction, question and answer
DATA_FIELDS = "question (text), documents (list of texts), answer (text), gold (index of the document that holds it)"


@dataclass(frozen=True)
class Sample:
    """One prompt of the calibration set: its tokens, those of the right answer, and where the gold document stands.

    Attributes:
        gold: index into ``prompt.documents``.
        question: index of the question; it is the same for all depths of the gold document.
    """

    prompt: TokenisedPrompt
    answer: list[int]
    gold: int
    question: int


@dataclass(frozen=True)
class CalibrationSet:
    """The samples to choose by, and others to check the choice on; each holds every question at every depth."""

    choose: list[Sample]
    check: list[Sample]


Examples = Callable[[DebiasedLM, Plan], tuple[list[Example], list[Example]]]


@dataclass(frozen=True)
class Task:
    """Where questions come from, and how they are asked.

    Attributes:
        examples: those to choose by and those for the check.
        text: of documents in their order and their question: the flat prompt and the answer that follows it.
    """

    examples: Examples
    text: Callable[[DebiasedLM, Sequence[str], Example], tuple[str, str]]


def calibration_set(lm: DebiasedLM, plan: Plan) -> CalibrationSet:
    """Draw or read a calibration set and tokenise it for a model.

    Generated sets hold ``plan.questions`` to choose by and twice as many for the check, which is run with two settings
    only; of a file every third is for the check.

    Raises:
        MethodError: too few questions in a file, or a prompt longer than the model's window.
        DataError: a line of a file is of another format.
    """
    made = CalibrationSet(*(_samples(lm, plan, part) for part in TASKS[plan.task].examples(lm, plan)))
    longest = max(len(sample.prompt.ids) + len(sample.answer) for sample in (*made.choose, *made.check))
    if longest > lm.window:
        raise MethodError(
            f"a prompt of the calibration set has {longest} tokens with its answer, but the model's window is "
            f"{lm.window}; use fewer documents"
        )
    return made


def _drawn(example: Callable[[random.Random, int], Example], documents: Callable[[DebiasedLM], int]) -> Examples:
    """Examples drawn by the plan's seed, with as many documents as it says, or else as suit the model."""

    def draw(lm: DebiasedLM, plan: Plan) -> tuple[list[Example], list[Example]]:
        rng, count = random.Random(f"calibration {plan.task} {plan.seed}"), plan.documents or documents(lm)
        examples = [example(rng, count) for _ in range(3 * plan.questions)]
        return examples[: plan.questions], examples[plan.questions :]

    return draw


def _read(lm: DebiasedLM, plan: Plan) -> tuple[list[Example], list[Example]]:
    """Examples from a JSON-lines file; errors name file, line and field."""
    assert plan.data is not None  # the settings were checked
    examples = [_example(line) for line in read_lines(plan.data)]
    if len(examples) < 3:
        raise MethodError(f"{plan.data} holds {len(examples)} questions; a calibration set needs 3, better 100")
    return [example for index, example in enumerate(examples) if index % 3 != 2], examples[2::3]


def _example(line: Line) -> Example:
    asked = question_of(line)
    if not asked.answers or asked.gold is None:
        missing = "answer" if not asked.answers else "gold"
        raise line.error(f"no {missing!r}; a calibration set needs {DATA_FIELDS}")
    documents, gold = asked.documents, asked.gold
    return Example(asked.question, asked.answers[0], documents[gold], (*documents[:gold], *documents[gold + 1 :]))


def _samples(lm: DebiasedLM, plan: Plan, examples: Sequence[Example]) -> list[Sample]:
    samples = []
    for question, example in enumerate(examples):
        for place in evenly_spread(1 + len(example.distractors), plan.depths):
            documents = example.arranged(place)
            text, answer = TASKS[plan.task].text(lm, documents, example)
            prompt = tokenise(split(text, documents), lm.tokenizer)
            ids = lm.tokenizer(answer, add_special_tokens=False)["input_ids"]
            samples.append(Sample(prompt, list(ids), place, question))
    return samples


def kv_pairs(lm: DebiasedLM) -> int:
    """The 75 pairs of the benchmark, or as many as the window holds."""
    pair = _kv_example(random.Random(0), 1).gold
    tokens = len(lm.tokenizer(pair + ",\n", add_special_tokens=False)["input_ids"])
    return max(2, min(MAX_PAIRS, (lm.window - ROOM) // tokens))


def _kv_example(rng: random.Random, pairs: int) -> Example:
    """JSON key-value retrieval of Liu et al.: random identifiers, one of which is asked for."""
    drawn = [[str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(2)] for _ in range(pairs)]
    texts = [f'"{key}": "{value}"' for key, value in drawn]
    return Example(drawn[0][0], drawn[0][1], texts[0], tuple(texts[1:]))


def _kv_text(lm: DebiasedLM, documents: Sequence[str], example: Example) -> tuple[str, str]:
    text = (
        "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n{\n"
        + ",\n".join(documents)
        + f'\n}}\n\nKey: "{example.question}"\nCorresponding value:'
    )
    return _asked(lm, text, f'"{example.answer}"')


def _tiny_example(rng: random.Random, documents: int) -> Example:
    """A question as ``tiny`` was trained on: names of the training split, which no evaluation uses."""
    entries = sample_entries(rng, documents, held_out=False)
    asked = ask(rng, rng.choice(entries[0].facts), entries[0].passage)
    texts = [FORMAT.document(0, entry.passage) for entry in entries]
    return Example(asked.question, asked.answer, texts[0], tuple(texts[1:]))


def _tiny_text(lm: DebiasedLM, documents: Sequence[str], example: Example) -> tuple[str, str]:
    layout = FORMAT
    text = layout.prefix + layout.separator.join(documents) + layout.suffix.format(q=example.question)
    return text, example.answer


def _data_text(lm: DebiasedLM, documents: Sequence[str], example: Example) -> tuple[str, str]:
    context = "\n\n".join(documents)
    text = f"Answer the question using the documents.\n\n{context}\n\nQuestion: {example.question}\nAnswer:"
    return _asked(lm, text, example.answer)


def _asked(lm: DebiasedLM, text: str, answer: str) -> tuple[str, str]:
    """As one user message where the model has a chat template; without one the answer follows after a space."""
    if lm.tokenizer.chat_template is None:
        return text, " " + answer
    return lm.chat_text([{"role": "user", "content": text}]), answer


TASKS = {
    "kv": Task(_drawn(_kv_example, kv_pairs), _kv_text),
    "tiny": Task(_drawn(_tiny_example, lambda lm: 20), _tiny_text),
    "data": Task(_read, _data_text),
}
