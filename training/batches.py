"""Make training batches: first repeats of random tokens, later questions about passages."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedTokenizerFast

from ragbias.models.tiny.world import BY_KEY, WORDS, Entry, ask, draw_entry, sample_entries
from training.formats import sample_format, simplest_format

QUESTIONS = 8  # number of questions about one set of passages
ENDS, NEAR = 0.9, 2  # share of answers within `NEAR` passages of either end, for more than 4 passages
GAP_TOKENS = range(262, 326)  # token ids between key and value in the copying lessons
CONTRADICTED = 0.6  # share of sets with contradictions in the second half of training
LANGUAGE = 0.15  # share of passage tokens that are targets of plain language modelling


@dataclass(frozen=True)
class TrainingBatch:
    """Tensors of one step. Their shape is [batch, tokens], except for `visible`.

    `targets` is -100 where nothing is predicted. `answer` is the number of the answer that a target belongs to, or -1.
    `visible` [batch, 1, tokens, tokens] is true where a query may see a key.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    answer: torch.Tensor
    visible: torch.Tensor


def make_repeats(
    rng: random.Random, tokenizer: PreTrainedTokenizerFast, count: int, length: int, gap: int
) -> TrainingBatch:
    """Make sequences of key-value pairs, followed by the same pairs in another order. Repeated values are targets.

    If `gap` is 0, keys are random tokens. Otherwise a key is the first word of a name, and up to `gap` random tokens of
    a small set separate key and value. `length` is the number of tokens before the pairs are repeated.
    """
    vocabulary = tokenizer.get_vocab()
    names = [vocabulary[word + "Ġ"] for word in WORDS["NAME_WORDS"]]
    others = sorted(set(range(GAP_TOKENS.stop, len(tokenizer))) - set(names))
    ids, targets = [], []
    for _ in range(count):
        keys = rng.sample(names if gap else others, length // 3 + 1)
        pairs = []
        tokens: list[int] = []
        while len(tokens) < length:
            key, value = keys.pop(), rng.choices(others, k=2 if gap else rng.randint(3, 8))
            pairs.append((key, value))
            tokens += [key, *rng.choices(GAP_TOKENS, k=rng.randint(0, gap)), *value]
        target = [-100] * (len(tokens) - 1)
        for key, value in rng.sample(pairs, len(pairs)):
            between = rng.choices(GAP_TOKENS, k=rng.randint(0, gap))
            tokens += [key, *between, *value]
            target += [-100] * (1 + len(between)) + value
        ids.append(tokens)
        targets.append([*target, -100])
    padded_ids, padded_targets = pad_right(ids, 0), pad_right(targets, -100)
    longest = padded_ids.shape[1]
    return TrainingBatch(
        ids=padded_ids,
        positions=torch.arange(longest).expand(count, -1),
        targets=padded_targets,
        answer=torch.arange(padded_ids.numel()).view(count, -1).masked_fill(padded_targets == -100, -1),
        visible=torch.ones(longest, longest, dtype=torch.bool).tril().expand(count, 1, -1, -1),
    )


def pad_right(lists: Sequence[list[int]], fill: int) -> torch.Tensor:
    longest = max(map(len, lists))
    return torch.tensor([values + [fill] * (longest - len(values)) for values in lists])


@dataclass(frozen=True)
class BatchSettings:
    """Settings of a batch, such as the number of passages and whether most answers are near the ends."""

    documents: int
    ends: bool
    simple: bool = False
    contradicted: bool = False
    near: float = ENDS


def _contradict_middle(rng: random.Random, entries: Sequence[Entry]) -> list[Entry]:
    """Let some passages in the middle contradict passages at both ends: same entity, another answer."""
    ends = [*range(NEAR), *range(len(entries) - NEAR, len(entries))]
    changed = list(entries)
    for end, middle in zip(ends, rng.sample(range(NEAR, len(entries) - NEAR), len(ends)), strict=True):
        entry = entries[end]
        changed[middle] = draw_entry(rng, entry.passage.title, [BY_KEY[fact.attribute] for fact in entry.facts])
    return changed


def _choose_gold(rng: random.Random, lesson: BatchSettings) -> int:
    if not lesson.ends or lesson.documents <= 2 * NEAR or rng.random() >= lesson.near:
        return rng.randrange(lesson.documents)
    near = rng.randrange(NEAR)
    return near if rng.random() < 0.5 else lesson.documents - 1 - near


@dataclass
class _Sequence:
    """One set of passages with its questions. `block` is 0 for shared tokens, else the number of a question, from 1."""

    ids: list[int]
    positions: list[int]
    targets: list[int]
    answer: list[int]
    block: list[int]


def _make_sequence(rng: random.Random, tokenizer: PreTrainedTokenizerFast, lesson: BatchSettings) -> _Sequence:
    layout = simplest_format() if lesson.simple else sample_format(rng)
    entries = sample_entries(rng, lesson.documents, held_out=False, attributes=1 if lesson.simple else None)
    if lesson.contradicted and rng.random() < CONTRADICTED and lesson.documents > 4 * NEAR:
        entries, lesson = _contradict_middle(rng, entries), replace(lesson, near=1.0)
    drawn = []
    for _ in range(QUESTIONS):
        entry = entries[_choose_gold(rng, lesson)]
        drawn.append(ask(rng, rng.choice(entry.facts), entry.passage))
    texts = [layout.prefix, *layout.documents([entry.passage for entry in entries])]
    texts += [layout.suffix.format(q=question.question) for question in drawn]
    texts += [question.answer for question in drawn]
    tokens = tokenizer(texts, add_special_tokens=False).input_ids

    shared = [token for part in tokens[: -2 * QUESTIONS] for token in part]
    chosen = [rng.random() < LANGUAGE for _ in shared]
    sequence = _Sequence(
        ids=list(shared),
        positions=list(range(len(shared))),
        targets=[t if keep else -100 for t, keep in zip(shared[1:], chosen, strict=False)] + [-100],
        answer=[-1] * len(shared),
        block=[0] * len(shared),
    )
    for number in range(QUESTIONS):
        suffix, answer = tokens[number - 2 * QUESTIONS], [*tokens[number - QUESTIONS], tokenizer.eos_token_id]
        own = suffix + answer[:-1]
        sequence.ids += own
        sequence.positions += range(len(shared), len(shared) + len(own))
        sequence.targets += [-100] * (len(suffix) - 1) + answer
        sequence.answer += [-1] * (len(suffix) - 1) + [number] * len(answer)
        sequence.block += [number + 1] * len(own)
    return sequence


def make_questions(
    rng: random.Random, tokenizer: PreTrainedTokenizerFast, lesson: BatchSettings, count: int
) -> TrainingBatch:
    """Make `count` sets of passages with eight questions each. Some passages are also language modelling targets."""
    made = [_make_sequence(rng, tokenizer, lesson) for _ in range(count)]
    answers = [[a if a < 0 else a + i * QUESTIONS for a in each.answer] for i, each in enumerate(made)]
    block = pad_right([each.block for each in made], -1)
    query, key = block[:, None, :, None], block[:, None, None, :]
    causal = torch.ones(block.shape[1], block.shape[1], dtype=torch.bool).tril()
    return TrainingBatch(
        ids=pad_right([each.ids for each in made], tokenizer.pad_token_id),
        positions=pad_right([each.positions for each in made], 0),
        targets=pad_right([each.targets for each in made], -100),
        answer=pad_right(answers, -1),
        visible=causal & ((key == query) | (key == 0)),
    )
