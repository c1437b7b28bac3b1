"""Settings of a server and of its models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from ragbias import limits, methods
from ragbias.boundaries import Boundaries, locate
from ragbias.boundaries.locating import NOTHING_GIVEN
from ragbias.boundaries.recognisers import document_elements
from ragbias.cache import DocumentCache
from ragbias.cache.document_cache import MEMORY
from ragbias.frameworks import OnMissing
from ragbias.lm import DebiasedLM
from ragbias.models.gguf import find_gguf_file, is_gguf
from ragbias.models.loading import load_tokenizer, refuse_irregular
from ragbias.models.named import installed
from ragbias.readers import check_readers

NOT_NAMED = f"{NOTHING_GIVEN}; send the field 'documents', or start the server with --separator or --segmenter"


class ServerSettings(BaseModel):
    """Limits, batching and other settings of one server. Requests above a limit are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    api_key: str = Field(default="", repr=False)  # one key per line for several tenants
    share_cache: bool = False  # whether tenants share cached documents
    tenant_header: str = ""  # header with the tenant's name, set by a gateway
    max_body_bytes: int = Field(default=4 * 2**20, ge=1, le=limits.MEGABYTES.most * 2**20)
    max_documents: Annotated[int, limits.COUNTS] = 1_000
    max_new_tokens: Annotated[int, limits.TOKENS] | None = None  # None: only the context window limits it
    max_waiting: Annotated[int, limits.COUNTS] = 256  # queued requests
    max_connections: Annotated[int, limits.COUNTS] = 1_000  # at most half of the process's limit of open files
    max_batch: Annotated[int, limits.COUNTS] = 8
    max_batch_tokens: Annotated[int, limits.TOKENS] = 65_536  # including padding and new tokens
    batch_wait_ms: int = Field(default=5, ge=0, le=60_000)  # time that a batch waits for more requests
    max_streams: Annotated[int, limits.COUNTS] = 4  # streams that run in parallel to a batch
    strict: bool = False  # run each request alone, so that answers are bit-identical
    grace_seconds: Annotated[int, limits.SECONDS] = 30
    on_missing: OnMissing = "warn"
    separator: str = ""  # between documents, for requests without `documents`
    segmenter: re.Pattern[str] | None = None  # matches a document; replaces the separator
    strip_numbering: bool = False  # used by the proxy only

    def locate_documents(self, text: str, documents: Sequence[str] | None = None) -> Boundaries:
        """Locate ``documents``. Without them, use the segmenter, the separator, or at least two XML elements."""
        segmenter = (
            self.segmenter or self.separator or (document_elements if len(document_elements(text)) > 1 else None)
        )
        found = locate(text, documents=documents, segmenter=segmenter)
        return replace(found, reason=NOT_NAMED) if found.reason == NOTHING_GIVEN else found

    @property
    def batch_size(self) -> int:
        """Maximum number of requests in one padded batch."""
        return 1 if self.strict else self.max_batch


class ModelSettings(BaseModel):
    """A model to serve."""

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
        refuse_irregular(self.model)
        if is_gguf(self.model):
            find_gguf_file(self.model)
        elif not installed(self.model):
            load_tokenizer(self.model, {})

    def load(self) -> dict[str, DebiasedLM]:
        """Load the model. Return it under its name for clients."""
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
