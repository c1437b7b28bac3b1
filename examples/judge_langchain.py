"""A pairwise judge for LangChain whose verdict does not depend on which response comes first.

    python examples/judge_langchain.py --model tiny
    python examples/judge_langchain.py --model Qwen/Qwen2.5-7B-Instruct --question "..." --responses "..." "..."

PairwiseJudge is a PairwiseStringEvaluator and can replace LangChain's labeled_pairwise_string. The two responses are
documents in the prompt. They have no letters or numbers, because a verdict such as "[[A]]" would name a position.
Instead, the prompt tells the model to repeat the better response, and the likelier response wins. With an
order-invariant method the verdict is bit-identical in both orders.

LangChain's models do not score given texts, so the scores come from ``ChatRagBias.lm``.
"""

import argparse
from typing import Any

from langchain_classic.evaluation.schema import PairwiseStringEvaluator
from langchain_core.messages import convert_to_openai_messages
from langchain_core.prompts import ChatPromptTemplate

from langchain_ragbias import ChatRagBias
from ragbias.methods import DEFAULT_METHOD

PROMPT = ChatPromptTemplate.from_messages(
    [
        ("system", "You compare responses to a question by how right, complete and clear they are."),
        (
            "human",
            "Question: {question}{reference}\n\nResponses:\n\n{responses}\n\nRepeat the better response word for word.",
        ),
    ]
)


class PairwiseJudge(PairwiseStringEvaluator):
    """Compare two responses by the mean log-probability of the tokens that repeat them.

    The result has ``value`` ("A", "B", or None for a tie), ``score`` (1, 0 or 0.5) and ``log_probabilities``.
    """

    def __init__(self, llm: ChatRagBias, labeled: bool = False) -> None:
        self.llm, self.labeled = llm, labeled

    @property
    def requires_input(self) -> bool:
        """Whether the judge needs the question."""
        return True

    @property
    def requires_reference(self) -> bool:
        """Whether the judge needs the right answer."""
        return self.labeled

    def _evaluate_string_pairs(
        self,
        *,
        prediction: str,
        prediction_b: str,
        reference: str | None = None,
        input: str | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        pair = [prediction, prediction_b]
        if prediction == prediction_b:
            return {"reasoning": "", "value": None, "score": 0.5, "log_probabilities": None}
        known = f"\n\nReference answer: {reference}" if reference and self.labeled else ""
        value = PROMPT.invoke({"question": input, "reference": known, "responses": "\n\n".join(pair)})
        text = self.llm.lm.chat_text(convert_to_openai_messages(value.to_messages()))
        scores = [self.llm.lm.score(text, each, documents=pair, method=self.llm.method) for each in pair]
        means = [score.total / len(score.token_ids) for score in scores]
        verdict = "A" if means[0] > means[1] else "B" if means[1] > means[0] else None
        return {
            "reasoning": "",
            "value": verdict,
            "score": {"A": 1, "B": 0, None: 0.5}[verdict],
            "log_probabilities": means,
        }


def main() -> None:
    """Judge one pair in both orders, with the default method and with the plain model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="tiny, the embedded toy model; a hub name or a path")
    parser.add_argument("--question", default="Which emblem does Heron Bridge have?")
    parser.add_argument("--reference", help="the right answer, if there is one")
    parser.add_argument(
        "--responses",
        nargs=2,
        default=["The emblem of Heron Bridge is a silver key.", "Heron Bridge was founded by Ada Quill."],
    )
    arguments = parser.parse_args()
    for method in (DEFAULT_METHOD, "none"):
        judge = PairwiseJudge(ChatRagBias(model_id=arguments.model, method=method), labeled=bool(arguments.reference))
        for one, other in (arguments.responses, arguments.responses[::-1]):
            verdict = judge.evaluate_string_pairs(
                prediction=one, prediction_b=other, input=arguments.question, reference=arguments.reference
            )
            winner = {"A": repr(one), "B": repr(other), None: "nobody"}[verdict["value"]]
            means = sorted(verdict["log_probabilities"] or (0, 0), reverse=True)
            print(f"{method:5} {winner} wins, {means[0]:.4f} to {means[1]:.4f}")


if __name__ == "__main__":
    main()
