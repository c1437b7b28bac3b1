"""The stock retrieval prompt of LangChain's documentation, for questions that bring no prompt of their own."""

from __future__ import annotations

from collections.abc import Sequence

from ragbias.lm import DebiasedLM

SYSTEM = (
    "Use the given context to answer the question. If you don't know the answer, say you don't know. "
    "Keep the answer concise.\n\nContext: "
)


def stock_prompt(lm: DebiasedLM, documents: Sequence[str], question: str) -> str:
    """The flat prompt, documents verbatim and a blank line apart; in the model's chat template if it has one."""
    system = SYSTEM + "\n\n".join(documents)
    if lm.tokenizer.chat_template is None:
        return f"{system}\n\nQuestion: {question}\nAnswer:"
    return lm.chat_text([{"role": "system", "content": system}, {"role": "user", "content": question}])
