"""The stock retrieval prompt."""

from __future__ import annotations

from collections.abc import Sequence

from ragbias.lm import DebiasedLM

# the system prompt in LangChain's documentation
SYSTEM_PROMPT = (
    "Use the given context to answer the question. If you don't know the answer, say you don't know. "
    "Keep the answer concise.\n\nContext: "
)


def stock_prompt(lm: DebiasedLM, documents: Sequence[str], question: str, instruction: str = SYSTEM_PROMPT) -> str:
    """Render the documents, joined by blank lines, and the question. Use the chat template if the model has one."""
    system = instruction + "\n\n".join(documents)
    if lm.tokenizer.chat_template is None:
        return f"{system}\n\nQuestion: {question}\nAnswer:"
    return lm.chat_text([{"role": "system", "content": system}, {"role": "user", "content": question}])


def fit_window(lm: DebiasedLM, documents: list[str], question: str, new_tokens: int) -> list[str]:
    """Drop the last documents until the prompt and ``new_tokens`` generated tokens fit the window.

    Return the remaining documents. The first document remains even if it does not fit.
    """
    for count in range(len(documents), 1, -1):
        prompt = stock_prompt(lm, documents[:count], question)
        if len(lm.tokenizer(prompt, add_special_tokens=False)["input_ids"]) + new_tokens <= lm.window:
            return documents[:count]
    return documents[:1]
