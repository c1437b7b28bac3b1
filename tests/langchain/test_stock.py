"""``method="none"`` has the same prompts and tokens as LangChain's stock classes."""

import pytest
from langchain_huggingface import ChatHuggingFace, HuggingFacePipeline
from transformers import pipeline

from langchain_ragbias import ChatRagBias, RagBiasPipeline
from ragbias.lm import DebiasedLM
from ragbias.models import local_path
from support.forward_passes import reading
from support.prompts import STOCK_PROMPTS

TOKENS = 6
WITH_DOCUMENTS = pytest.mark.parametrize("with_documents", [True, False], ids=["documents", "no documents"])


@pytest.fixture(scope="module")
def tiny() -> DebiasedLM:
    return DebiasedLM.from_pretrained("tiny")


@pytest.fixture(scope="module")
def stock(tiny: DebiasedLM) -> HuggingFacePipeline:
    made = pipeline("text-generation", model=tiny.model, tokenizer=tiny.tokenizer)
    return HuggingFacePipeline(pipeline=made)


def answered(stock: HuggingFacePipeline, text: str) -> str:
    return stock.invoke(text, pipeline_kwargs={"max_new_tokens": TOKENS, "do_sample": False}, skip_prompt=True)


@WITH_DOCUMENTS
def test_none_is_the_stock_pipeline(tiny, stock, with_documents):
    llm, changed = RagBiasPipeline(lm=tiny, method="none", max_tokens=TOKENS), 0
    with reading(tiny.model) as prompts:
        for text, documents in STOCK_PROMPTS:
            given = {"documents": documents} if with_documents else {}
            answers = [answered(stock, text), llm.invoke(text, **given)]
            assert prompts[-1] == prompts[-2] and answers[0] == answers[1]
            report = llm.last_report
            assert report is not None and not report["segmentation_changed"]
            assert len(report["spans"]) == (3 if with_documents else 0)
            llm.invoke(text, **given, method="segmented")
            changed += prompts[-1] != prompts[-2]
            report = llm.last_report
            assert report is not None and report["segmentation_changed"] == (prompts[-1] != prompts[-2])
    assert (changed >= 5) == with_documents  # so that the comparison shows something


@WITH_DOCUMENTS
def test_none_is_the_stock_chat_model_but_for_its_second_bos(tiny, stock, with_documents):
    theirs = ChatHuggingFace(llm=stock, model_id=str(local_path("tiny")))
    ours, bos = ChatRagBias(lm=tiny, method="none", max_tokens=TOKENS), tiny.tokenizer.bos_token_id
    with reading(tiny.model) as prompts:
        for text, documents in STOCK_PROMPTS:
            given = {"documents": documents} if with_documents else {}
            theirs.invoke(text)
            answer = ours.invoke(text, **given)
            assert prompts[-2] == [bos, *prompts[-1]] and prompts[-1][:2].count(bos) == 1
            templated = tiny.chat_text([{"role": "user", "content": text}]).removeprefix(tiny.tokenizer.bos_token)
            assert answer.content == answered(stock, templated)
            assert prompts[-1] == prompts[-2]


def test_a_request_that_falls_back_runs_as_the_stock_class_too(tiny, stock):
    text, documents = STOCK_PROMPTS[0]
    with reading(tiny.model) as prompts:
        stock.invoke(text)
        RagBiasPipeline(lm=tiny, method="pine", max_tokens=TOKENS).invoke(text, documents=documents[1:2])
        assert prompts[-1] == prompts[-2]
