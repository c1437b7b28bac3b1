"""Fields of an integration's model that a given ``DebiasedLM`` has settled already."""

from __future__ import annotations

from typing import Any, Protocol

from ragbias.adapters.remote import RemoteLM
from ragbias.lm import DebiasedLM


class ModelWithFields(Protocol):
    """A pydantic model with the fields ``debias``, ``strip_numbering`` and ``backend``."""

    debias: Any
    strip_numbering: bool
    backend: str

    @property
    def model_fields_set(self) -> set[str]:
        """Names of the fields that were given."""


def settle(llm: ModelWithFields, lm: DebiasedLM | RemoteLM, error: type[Exception]) -> None:
    """Take over what a given ``lm`` was made with; a ``debias`` of the integration's own stays.

    Raises:
        error: a field that only the lm can settle was given and says otherwise.
    """
    given = llm.model_fields_set
    for name in ("strip_numbering", "backend"):
        settled = getattr(lm, name)
        if name in given and getattr(llm, name) != settled:
            raise error(f"{name} is settled by the lm given; pass it to ragbias.DebiasedLM")
        setattr(llm, name, settled)
    if "debias" not in given:
        llm.debias = lm.method
