"""Settings of a served model, with methods that check and load it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from ragbias import methods
from ragbias.cache import DocumentCache
from ragbias.cache.document_cache import MEMORY
from ragbias.lm import DebiasedLM
from ragbias.models.gguf import find_gguf_file, is_gguf
from ragbias.models.loading import check_model_path, load_tokenizer
from ragbias.models.named import installed
from ragbias.readers import check_readers


class ModelSettings(BaseModel):
    """Settings of a served model."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str
    name: str | None = None  # name for clients; None: `model`
    method: str | None = None  # None: the best method measured for the model
    reader: str = ""  # folder of a reader adapter for the method
    dtype: str = "auto"
    device: str | None = None  # such as "cuda"; None: a GPU if there is one
    strip_numbering: bool = False
    cache: str | None = None  # a folder that several processes may share
    cache_memory: str | None = None  # such as "4GB"; None: 2 GB with a folder, no cache without one

    @property
    def served_name(self) -> str:
        return self.name or self.model

    def document_cache(self) -> DocumentCache | None:
        """Create the document cache. Return None if neither its folder nor its memory is set."""
        if self.cache is None and self.cache_memory is None:
            return None
        return DocumentCache(memory=self.cache_memory or MEMORY, folder=self.cache)

    def check(self) -> None:
        """Check model, method, reader and cache without loading weights. Raise the errors that ``load`` raises."""
        check_readers([methods.get(self.method, self.model, self.reader)])
        self.document_cache()
        check_model_path(self.model)
        if is_gguf(self.model):
            find_gguf_file(self.model)
        elif not installed(self.model):
            load_tokenizer(self.model, {})

    def load(self) -> dict[str, DebiasedLM]:
        """Load the model. Return it in a dict, under the name that clients use."""
        lm = DebiasedLM.from_pretrained(
            self.model,
            self.method,
            dtype=self.dtype,
            device=self.device or "auto",
            strip_numbering=self.strip_numbering,
            cache=self.document_cache(),
            reader=self.reader,
        )
        return {self.served_name: lm}
