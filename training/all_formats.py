"""Measure the embedded model's accuracy in all training formats: `python -m training.all_formats`.

`ragbias bench --task tiny` uses the same questions in one format. It uses `DebiasedLM`, which adds a missing BOS token
and missing separators.
"""

import random

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ragbias.models import tiny
from ragbias.models.tiny.world import cases
from training.formats import sample_format

BATCH_SIZE = 20


@torch.no_grad()
def measure_accuracy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    documents: int,
    position: int,
    seed: int,
    questions: int = 100,
) -> float:
    """Return the share of right greedy answers with the gold passage at `position`, counted from 0.

    The format of each question is drawn at random.
    """
    rng = random.Random(f"layouts {seed}")
    prompts = []
    for question, others in cases(documents, questions, seed):
        passages = [*others[:position], question.gold, *others[position:]]
        prompts.append((sample_format(rng).prompt(passages, question.question), question.answer))
    right = 0
    for begin in range(0, questions, BATCH_SIZE):
        texts, answers = zip(*prompts[begin : begin + BATCH_SIZE], strict=True)
        batch = tokenizer(list(texts), add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt")
        output = model.generate(**batch, max_new_tokens=8, do_sample=False)  # type: ignore[operator]
        generated = tokenizer.batch_decode(output[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        right += sum(text.strip() == answer for text, answer in zip(generated, answers, strict=True))
    return right / questions


def main() -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny.path()), AutoTokenizer.from_pretrained(tiny.path())
    for seed in (1, 2, 3):
        found = {
            position + 1: measure_accuracy(model, tokenizer, 20, position, seed) for position in (0, 5, 10, 15, 19)
        }
        print(f"seed {seed}: {found}", flush=True)


if __name__ == "__main__":
    main()
