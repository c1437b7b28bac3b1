"""Accuracy of the embedded model by the place of the answer: `python -m training.evaluate`.

Every question is asked once with its passage at each position among distractors; entities are held out from training.
An answer counts when the greedy text equals the expected one.
"""

import argparse
import json
import random
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ragbias.models import tiny
from ragbias.models.tiny.cases import FORMAT, cases
from ragbias.models.tiny.formats import PromptFormat, sample_format
from ragbias.models.tiny.world import Passage


def segments(tokenizer: Any, layout: PromptFormat, passages: Sequence[Passage], question: str) -> list[list[int]]:
    """Token ids of prefix, documents and suffix.

    Where the suffix begins with the separator, every document is followed by one, and the documents are the same
    segments in any order.
    """
    documents = [layout.document(i, passage) for i, passage in enumerate(passages)]
    suffix = layout.suffix.format(q=question)
    if suffix.startswith(layout.separator):
        documents = [text + layout.separator for text in documents]
        suffix = suffix.removeprefix(layout.separator)
    else:
        documents = documents[:1] + [layout.separator + text for text in documents[1:]]
    ids: list[list[int]] = tokenizer([layout.prefix, *documents, suffix], add_special_tokens=False).input_ids
    return ids


@torch.no_grad()
def answers(model: Any, tokenizer: Any, prompts: Sequence[list[list[int]]], method: Any = None) -> list[str]:
    """Greedy answers to a batch of prompts given as segments, with `method` of `ragbias.methods` if there is one."""
    flat = [[token for segment in prompt for token in segment] for prompt in prompts]
    batch = tokenizer.pad({"input_ids": flat}, padding_side="left", return_tensors="pt")
    with _debiased(model, prompts, method):
        out = model.generate(**batch, max_new_tokens=8, do_sample=False)
    texts = tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    return [text.strip() for text in texts]


def _debiased(model: Any, prompts: Sequence[list[list[int]]], method: Any) -> Any:
    if method is None:
        return nullcontext()
    import ragbias

    width = max(sum(map(len, prompt)) for prompt in prompts)
    spans = []
    for prompt in prompts:
        padding = width - sum(map(len, prompt))
        edges = list(accumulate(map(len, prompt[1:-1]), initial=padding + len(prompt[0])))
        spans.append(list(pairwise(edges)))
    return ragbias.debias(model, method, spans=spans)


def by_position(
    model: Any,
    tokenizer: Any,
    documents: int,
    seed: int,
    count: int = 100,
    places: Sequence[int] | None = None,
    layout: PromptFormat | None = FORMAT,
    method: Any = None,
    batch: int = 20,
) -> dict[int, float]:
    """Share of right answers for the gold passage at each of `places` (default: all); `layout` None draws formats."""
    rng = random.Random(f"layouts {seed}")
    asked = [(q, rest, layout or sample_format(rng)) for q, rest in cases(documents, count, seed)]
    result = {}
    for place in range(documents) if places is None else places:
        right = 0
        for start in range(0, count, batch):
            part = asked[start : start + batch]
            prompts = [
                segments(tokenizer, form, [*rest[:place], q.gold, *rest[place:]], q.question) for q, rest, form in part
            ]
            said = answers(model, tokenizer, prompts, method)
            right += sum(text == q.answer for text, (q, _, _) in zip(said, part, strict=True))
        result[place + 1] = right / count
    return result


def summary(positions: dict[int, float]) -> dict[str, float]:
    """Mean, best, worst and gap of an accuracy curve."""
    values = list(positions.values())
    best, worst = max(values), min(values)
    return {"mean": round(mean(values), 4), "best": best, "worst": worst, "gap": round(best - worst, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=tiny.path(), help="folder of the model")
    parser.add_argument("--documents", type=int, nargs="+", default=[10, 20])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--questions", type=int, default=100, help="per seed, each asked at every position")
    parser.add_argument("--every", type=int, default=1, help="look at every n-th position only")
    parser.add_argument("--method", help="name of a method, as ragbias.methods.get takes it")
    parser.add_argument("--formats", choices=("one", "all"), default="one", help="one prompt format or all")
    parser.add_argument("--json", type=Path, help="write the results here")
    arguments = parser.parse_args()
    method = None
    if arguments.method:
        import ragbias.methods

        method = ragbias.methods.get(arguments.method)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    results = []
    for documents in arguments.documents:
        places = sorted({*range(0, documents, arguments.every), documents - 1})
        for seed in arguments.seeds:
            layout = FORMAT if arguments.formats == "one" else None
            found = by_position(model, tokenizer, documents, seed, arguments.questions, places, layout, method)
            results.append({"documents": documents, "seed": seed, "positions": found, **summary(found)})
            print(json.dumps(results[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
