"""LlamaIndex's public programs: document order has no effect, or a warning names a remedy."""

from functools import partial
from typing import Any

import pytest
from llama_index.llms.ragbias import RagBiasLLM, install_listener, uninstall_listener

from ragbias import DebiasedLM
from support.integrations import fresh_listener
from support.llama_index_programs import EARLIER_SEARCHES, PROGRAMS, permuted
from support.programs import ORDERS, Outcome, Run, check, outcome

QUESTION = "What is the passphrase of the Falcon Station?"


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_order_invariant_or_warn_with_a_remedy(name, tool_lm, index):
    fresh = partial(fresh_listener, install_listener, uninstall_listener)

    def outcomes(program: Run, strip_numbering: bool = False, **fields: Any) -> list[Outcome]:
        def run(order: str, recording: DebiasedLM) -> str:
            llm = RagBiasLLM(lm=recording, max_new_tokens=8, **fields)
            return program(llm, permuted(index, ORDERS[order], EARLIER_SEARCHES.get(name, 0)), QUESTION)

        lm = DebiasedLM(tool_lm.model, tool_lm.tokenizer, name=tool_lm.name, strip_numbering=strip_numbering)
        return [outcome(lm, partial(run, order), fresh) for order in ORDERS]

    check(PROGRAMS[name], outcomes)
