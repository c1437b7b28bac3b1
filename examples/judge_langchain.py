"""A pairwise judge whose verdict does not depend on which response comes first.

    python examples/judge_langchain.py
    python examples/judge_langchain.py --model Qwen/Qwen2.5-7B-Instruct --question "..." --responses "..." "..."

The two responses are the documents of the prompt, without letters or numbers: a verdict such as "A" would name a place.
Instead the model is asked to repeat the better response, and the one that it finds likelier is the winner. With an
order-invariant method the prompt means the same in both orders, so the verdict is the same, to the last bit.
"""

import argparse
from collections.abc import Sequence

from langchain_core.prompts import ChatPromptTemplate

from langchain_ragbias import ChatRagBias

PROMPT = ChatPromptTemplate.from_messages(
    [
        ("system", "You compare responses to a question by how right, complete and clear they are."),
        ("human", "Question: {question}\n\nResponses:\n\n{responses}\n\nRepeat the better response word for word."),
    ]
)


def judge(llm: ChatRagBias, question: str, responses: Sequence[str]) -> tuple[int, list[float]]:
    """The better response's index, and each one's mean log-probability per token.

    Raises:
        ValueError: the responses are not two different texts.
    """
    if len(responses) != 2 or len(set(responses)) != 2:
        raise ValueError(f"expected two different responses, got {len(responses)}")
    value = PROMPT.invoke({"question": question, "responses": "\n\n".join(responses)})
    roles = {"system": "system", "human": "user"}
    text = llm.lm.chat_text([{"role": roles[each.type], "content": each.content} for each in value.messages])
    scores = [llm.lm.score(text, response, documents=responses, method=llm.debias) for response in responses]
    means = [score.total / len(score.token_ids) for score in scores]
    return means.index(max(means)), means


def main() -> None:
    """Judge one pair in both orders, debiased and plain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--question", default="Which emblem does Heron Bridge have?")
    parser.add_argument(
        "--responses",
        nargs=2,
        default=["The emblem of Heron Bridge is a silver key.", "Heron Bridge was founded by Ada Quill."],
    )
    arguments = parser.parse_args()
    for method in ("pine", "none"):
        llm = ChatRagBias(model_id=arguments.model, debias=method)
        for order in (arguments.responses, arguments.responses[::-1]):
            winner, means = judge(llm, arguments.question, order)
            print(f"{method:5} {order[winner]!r} wins, {means[winner]:.4f} to {means[1 - winner]:.4f}")


if __name__ == "__main__":
    main()
