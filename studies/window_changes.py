"""Measure three changes of parallel windows that need no training.

    turn        each document is in a separate turn of the chat template
    opening     each document begins with the tokens that open a turn
    recomputed  the document tokens to which the question attends most also
                see the other documents, as with PINE's mask

FILE has questions in the official multi-document format, with the gold document first. The plain model runs with the
gold document first, in the middle and last.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from ragbias.files import write_atomically
from ragbias.lm import DebiasedLM
from studies import arguments_of
from studies.readers import read_cases, show_accuracy, show_scores
from studies.windows import (
    Context,
    Row,
    compute_context,
    compute_hidden,
    compute_logprobs,
    generate_answers,
    make_case_rows,
    pad_right,
    run_tokens,
)

QUESTION = "{question}"


def turn_tokens(lm: DebiasedLM) -> tuple[list[int], list[int]]:
    """Return the tokens that close a user's turn, and the tokens that open one."""
    turns = str(lm.chat_text([{"role": "user", "content": QUESTION}, {"role": "user", "content": QUESTION}]))
    between = turns.split(QUESTION)[1]
    ids = lm.tokenizer(between, add_special_tokens=False).input_ids
    end = len(lm.tokenizer(lm.tokenizer.decode(ids)[: between.index("<", 1)], add_special_tokens=False).input_ids)
    return ids[:end], ids[end:]


def enclose_documents(row: Row, before: list[int], after: list[int]) -> Row:
    return Row(row.prefix, [[*before, *window, *after] for window in row.windows], row.suffix, row.target)


def recompute_context(model: PreTrainedModel, rows: Sequence[Row], share: float) -> Context:
    """Return a context where the most attended ``share`` of each row's document tokens also sees other documents.

    These tokens see the prefix, the earlier tokens of their document, and all tokens of other documents. Positions are
    those of parallel windows.
    """
    probe = compute_context(model, rows)
    probe.mass = torch.zeros(probe.seen.shape, device=probe.seen.device)
    compute_hidden(model, probe, [row.suffix for row in rows])
    context = compute_context(model, rows)
    tails, tail_columns, masks = [], [], []
    for row, mass in zip(rows, probe.mass, strict=True):
        begin = len(row.prefix)
        ids = torch.tensor([token for window in row.windows for token in window])
        document = torch.tensor([index for index, window in enumerate(row.windows) for _ in window])
        position = torch.tensor([place for window in row.windows for place in range(len(window))])
        chosen = mass[begin : begin + len(ids)].topk(round(share * len(ids))).indices.sort().values
        seen = document[chosen, None].ne(document) | position[chosen, None].ge(position)
        tails.append((ids[chosen], begin + position[chosen]))
        tail_columns.append(begin + chosen)
        masks.append(seen)
    width, columns = max(len(ids) for ids, _ in tails), context.seen.shape[1]
    tokens, real = pad_right([ids.tolist() for ids, _ in tails], model.device)
    positions, _ = pad_right([places.tolist() for _, places in tails], model.device)
    mask = torch.zeros(len(rows), width, columns + width, dtype=torch.bool)
    mask[:, :, : len(rows[0].prefix)] = True
    for index, (chosen, seen) in enumerate(zip(tail_columns, masks, strict=True)):
        count, begin = len(chosen), len(rows[index].prefix)
        mask[index, :count, begin : begin + seen.shape[1]] = seen
        mask[index, :count, columns : columns + count] = seen[:, chosen - begin]
        mask[index, :, chosen] = False
        context.seen[index, chosen] = False
    context.mask = mask
    run_tokens(model, context, tokens, positions)
    context.seen = torch.cat([context.seen, real], dim=1)
    return context


@torch.no_grad()
def measure(lm: DebiasedLM, rows: Sequence[Sequence[Row]], share: float) -> dict[str, tuple[list[list[float]], list]]:
    """Return log-probabilities and answers ``[question][order]`` of each variant, given the rows of each question."""
    model, end = lm.model, lm.tokenizer.eos_token_id
    close, opening = turn_tokens(lm)
    first = [of_case[0] for of_case in rows]
    variants = {
        "none": [[row.plain for row in of_order] for of_order in zip(*rows, strict=True)],
        "pcw": [first],
        "turn": [[enclose_documents(row, [*close, *opening], [*close, *opening]) for row in first]],
        "opening": [[enclose_documents(row, opening, []) for row in first]],
    }
    contexts = {name: [compute_context(model, order) for order in orders] for name, orders in variants.items()}
    variants["recomputed"], contexts["recomputed"] = [first], [recompute_context(model, first, share)]
    results = {}
    for name, orders in variants.items():
        scores, answers = [], []
        for order, context in zip(orders, contexts[name], strict=True):
            scores.append(compute_logprobs(model, order, context=context.copy()))
            texts = generate_answers(model, order, end, context=context)
            answers.append(lm.tokenizer.batch_decode(texts, skip_special_tokens=True))
        results[name] = list(map(list, zip(*scores, strict=True))), list(map(list, zip(*answers, strict=True)))
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="file of the results")
    parser.add_argument("--model", default="smollm2", help="name or folder")
    parser.add_argument("--dtype", default="float32", help="dtype of the model")
    parser.add_argument("--questions", type=int, default=60, help="number of questions")
    parser.add_argument("--words", type=int, default=10_000, help="words of each passage")
    parser.add_argument("--share", type=float, default=0.2, help="share of the tokens to recompute")
    parser.add_argument("--batch", type=int, default=4, help="questions that run together")
    options = parser.parse_args(arguments)
    lm = DebiasedLM.from_pretrained(options.model, "none", dtype=options.dtype)
    cases = read_cases(options.file, options.words, options.questions)
    scores: dict[str, list[list[float]]] = {}
    answers: dict[str, list[list[str]]] = {}
    for begin in range(0, len(cases), options.batch):
        rows = [make_case_rows(lm, case) for case in cases[begin : begin + options.batch]]
        for name, (of_name, texts) in measure(lm, rows, options.share).items():
            scores.setdefault(name, []).extend(of_name)
            answers.setdefault(name, []).extend(texts)
        print(f"{len(scores['none'])} of {len(cases)} questions", flush=True)
        write_atomically(options.out, json.dumps({"scores": scores, "answers": answers}).encode())
    show_scores(scores)
    show_accuracy(cases, answers)


if __name__ == "__main__":
    main()
