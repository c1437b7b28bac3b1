"""``method="none"`` has the same prompts and tokens as LlamaIndex's stock class."""

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.llms.huggingface import HuggingFaceLLM
from llama_index.llms.ragbias import RagBiasLLM

from ragbias.lm import DebiasedLM
from support.forward_passes import reading
from support.prompts import STOCK_PROMPTS

TOKENS = 6


@pytest.mark.parametrize("with_documents", [True, False], ids=["documents", "no documents"])
def test_none_is_the_stock_class(with_documents):
    tiny = DebiasedLM.from_pretrained("tiny")
    greedy = {"do_sample": False}
    stock = HuggingFaceLLM(
        model=tiny.model, tokenizer=tiny.tokenizer, max_new_tokens=TOKENS, generate_kwargs=greedy, is_chat_model=False
    )
    ours = RagBiasLLM(lm=tiny, method="none", max_new_tokens=TOKENS, is_chat_model=False)
    bos = tiny.tokenizer.bos_token_id
    with reading(tiny.model) as prompts:
        for text, documents in STOCK_PROMPTS:
            given = {"documents": documents} if with_documents else {}
            answers = [stock.complete(text).text, ours.complete(text, **given).text]
            assert prompts[-1] == prompts[-2] and answers[0] == answers[1]
            messages = [ChatMessage(role="user", content=text)]
            stock.chat(messages)
            ours.chat(messages, **given)
            assert prompts[-2] == [bos, *prompts[-1]]  # the stock class doubles it
