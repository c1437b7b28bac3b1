"""Fields of an integration's model that a given ``DebiasedLM`` has settled already."""

from __future__ import annotations

from typing import Any, Protocol

from ragbias.adapters.remote import BESIDE_MODEL, RemoteLM
from ragbias.lm import DebiasedLM

FIELDS = {"strip_numbering": "strip_numbering", "backend": "backend", "document_cache": "cache"}  # and the lm's names


class ModelWithFields(Protocol):
    """A pydantic model with the field ``method`` and those of ``FIELDS``."""

    method: Any
    strip_numbering: bool
    backend: str
    document_cache: Any

    @property
    def model_fields_set(self) -> set[str]:
        """Names of the fields that were given."""


def settle(llm: ModelWithFields, lm: DebiasedLM | RemoteLM, error: type[Exception]) -> None:
    """Take over what a given ``lm`` was made with; a ``method`` of the integration's own stays.

    Raises:
        error: a field that only the lm can settle was given and says otherwise.
    """
    given = llm.model_fields_set
    for name, of_lm in FIELDS.items():
        settled = getattr(lm, of_lm)
        if name in given and getattr(llm, name) != settled:
            raise error(f"{name} is settled by {_remedy(name, lm)}")
        setattr(llm, name, settled)
    if "method" not in given:
        llm.method = lm.method


def check_model_only_at_server(llm: ModelWithFields, error: type[Exception]) -> None:
    """For a model with a ``base_url``.

    Raises:
        error: it was given a model or a cache of this process as well.
    """
    for name in BESIDE_MODEL:
        if name in llm.model_fields_set and getattr(llm, name) is not None:
            raise error(f"base_url and {name}: the server has its own; give one of them")


def _remedy(name: str, lm: DebiasedLM | RemoteLM) -> str:
    if isinstance(lm, DebiasedLM):
        return "the lm given; pass it to ragbias.DebiasedLM"
    return "the server; leave it out" + (
        ", and start `ragbias serve` with --strip-numbering" if name == "strip_numbering" else ""
    )
