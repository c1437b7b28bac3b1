"""A model judges pairs of answers, each pair in both orders: how many verdicts change when the answers are swapped?

    python examples/judge.py --model tiny
    python examples/judge.py --model Qwen/Qwen2.5-7B-Instruct --method pine --explain

"stock" is LlamaIndex's PairwiseComparisonEvaluator with the plain model. "judge" is the PairwiseJudge of
llama-index-llms-ragbias, which treats the answers as documents and hides their order from the model. A small model is a
poor judge, so both can be wrong, but only the stock verdict depends on the order.
"""

import argparse
import asyncio
from itertools import pairwise

from llama_index.core.evaluation import PairwiseComparisonEvaluator
from llama_index.llms.ragbias import RagBiasLLM
from llama_index.llms.ragbias.judge import VERDICTS, PairwiseJudge

from ragbias.generation import allow_only
from ragbias.methods import DEFAULT_METHOD
from ragbias.models.tiny.world import held_out_corpus, held_out_questions

NAMES = {1.0: "first", 0.0: "second", 0.5: "tie", None: "none"}


def pairs(count: int) -> list[tuple[str, str, str, str]]:
    """Return questions, each with a passage, the right answer, and the answer to another question."""
    asked = held_out_questions(held_out_corpus(40, seed=0), count + 1, seed=0)
    return [
        (one.question, one.gold.text, f"It is {one.answer}.", f"It is {other.answer}.")
        for one, other in pairwise(asked)
    ]


async def scores(judge: PairwiseComparisonEvaluator, pair: tuple[str, str, str, str]) -> list[float | None]:
    """Return the scores of the first answer, with the answers in both orders."""
    query, passage, one, two = pair
    there = await judge.aevaluate(query=query, response=one, second_response=two, reference=passage)
    back = await judge.aevaluate(query=query, response=two, second_response=one, reference=passage)
    return [there.score, None if back.score is None else 1 - back.score]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="tiny, the embedded toy model; a hub name or a path")
    parser.add_argument("--method", default=DEFAULT_METHOD, help="see `ragbias methods`")
    parser.add_argument("--pairs", type=int, default=8, help="number of pairs of answers")
    parser.add_argument("--explain", action="store_true", help="let the judge explain itself (for larger models)")
    arguments = parser.parse_args()

    llm = RagBiasLLM(model_name=arguments.model, method=arguments.method)
    settings = {} if arguments.explain else {"prefix_allowed_tokens_fn": allow_only(VERDICTS, llm.lm.tokenizer)}
    plain = RagBiasLLM(lm=llm.lm, method="none", generate_kwargs=settings)
    judges = {
        "stock": PairwiseComparisonEvaluator(plain, enforce_consensus=False),
        "judge": PairwiseJudge(llm, enforce_consensus=False, explain=arguments.explain),
    }
    changed = dict.fromkeys(judges, 0)
    for pair in pairs(arguments.pairs):
        print(f"\n{pair[0]}  (first: {pair[2]}  second: {pair[3]})")
        for name, judge in judges.items():
            there, back = await scores(judge, pair)
            changed[name] += there != back
            print(f"  {name}: {NAMES[there]} is better; swapped: {NAMES[back]}")
    print()
    for name, count in changed.items():
        print(f"{name}: {count} of {arguments.pairs} verdicts changed when the answers were swapped")


if __name__ == "__main__":
    asyncio.run(main())
