"""A method with plain `model.generate`: compare the next token's logits for documents in both orders.

python examples/transformers_generate.py --model tiny
python examples/transformers_generate.py --model Qwen/Qwen2.5-0.5B-Instruct --method pine
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

import ragbias
from ragbias.methods import DEFAULT_METHOD
from ragbias.models import local_path
from ragbias.models.tiny.world import held_out_corpus, held_out_questions

Span = tuple[int, int]


def encode(
    tokenizer: PreTrainedTokenizerBase, prefix: str, documents: list[str], suffix: str
) -> tuple[list[int], list[Span]]:
    """Return the prompt's token ids and the documents' spans. A document has the same tokens at every position."""
    ids = tokenizer(prefix)["input_ids"]
    spans = []
    for document in documents:
        begin = len(ids)
        ids = ids + tokenizer(document, add_special_tokens=False)["input_ids"]
        spans.append((begin, len(ids)))
    return ids + tokenizer(suffix, add_special_tokens=False)["input_ids"], spans


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="tiny, the embedded toy model; a hub name or a path")
    parser.add_argument("--method", default=DEFAULT_METHOD, help="see `ragbias methods`")
    arguments = parser.parse_args()

    path = local_path(arguments.model)
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, device_map="auto")

    corpus = held_out_corpus(10, seed=0)
    (question,) = held_out_questions(corpus, 1, seed=0)
    documents = [f"{passage.title}\n{passage.text}\n\n" for passage in corpus]
    suffix = f"Question: {question.question}\nAnswer:"
    print(f"{question.question}  (right: {question.answer})")

    for method in ("none", arguments.method):
        logits, answers = [], []
        for ordered in (documents, documents[::-1]):
            ids, spans = encode(tokenizer, "Context:\n", ordered, suffix)
            prompt = torch.tensor([ids], device=model.device)
            with ragbias.debias(model, method, spans=spans):
                logits.append(model(prompt).logits[0, -1])
                output = model.generate(
                    prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=16, do_sample=False
                )
            answers.append(tokenizer.decode(output[0, len(ids) :], skip_special_tokens=True).strip())
        difference = (logits[0] - logits[1]).abs().max().item()
        print(f"\n{method}: the largest difference of a logit between the two orders is {difference:.3g}")
        print(f"  as given: {answers[0]}\n  reversed: {answers[1]}")


if __name__ == "__main__":
    main()
