"""``RagBiasLLM(base_url=...)``: same engines, answers and reports with the model on a server."""

from collections.abc import Iterator

import pytest
from llama_index.core import PromptTemplate, get_response_synthesizer
from llama_index.core.llms import ChatMessage
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.tools import FunctionTool
from llama_index.llms.ragbias import RagBiasLLM, warm

from ragbias import DebiasedLM, DocumentCache
from ragbias.errors import ArgumentError, PromptTooLongError, ServerError
from support.live_server import serving
from support.scripted import saying

TEXTS = ["The mascot of Heron Mill is a brass owl.", "The mascot of Ember Abbey is a tin whale."]
QUESTION = "What is the mascot of Heron Mill?"
PROMPT = "\n".join([*TEXTS, QUESTION])


@pytest.fixture(scope="module")
def address(small_lm: DebiasedLM, tool_lm: DebiasedLM) -> Iterator[str]:
    with serving({"small": small_lm, "tools": tool_lm}) as found:
        yield found


@pytest.fixture
def own(small_lm: DebiasedLM) -> RagBiasLLM:
    return RagBiasLLM(lm=small_lm, max_new_tokens=8)


@pytest.fixture
def remote(address: str) -> RagBiasLLM:
    return RagBiasLLM(base_url=address, model_name="small", max_new_tokens=8)


def same(one, other) -> None:
    text = getattr(other, "text", None) or other.message.content
    assert (getattr(one, "text", None) or one.message.content) == text
    assert one.additional_kwargs == other.additional_kwargs


def test_the_servers_model_is_described_as_it_is_here(own, remote):
    ours, theirs = own.metadata, remote.metadata
    assert (theirs.context_window, theirs.is_chat_model, theirs.is_function_calling_model) == (
        ours.context_window,
        ours.is_chat_model,
        ours.is_function_calling_model,
    )
    assert theirs.model_name == "small" and remote.token_ids(PROMPT) == own.token_ids(PROMPT)


@pytest.mark.parametrize("mode", ["compact", "refine", "tree_summarize", "simple_summarize"])
def test_synthesizers_answer_the_same(own, remote, mode):
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in TEXTS]
    texts, reports = [], []
    for llm in (remote, own):
        synthesizer = get_response_synthesizer(
            llm=llm, response_mode=mode, text_qa_template=PromptTemplate("{context_str}\nQuestion: {query_str}")
        )
        texts.append(str(synthesizer.synthesize(QUESTION, nodes=nodes)))
        reports.append(llm.last_report)
    assert texts[0] == texts[1] and reports[0] == reports[1]


async def test_every_way_to_call_answers_the_same(own, remote):
    talk = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content=PROMPT)]
    given = {"documents": TEXTS, "method": "ape"}
    same(remote.chat(talk, **given), own.chat(talk, **given))
    same(await remote.achat(talk, **given), own.chat(talk, **given))
    same(list(remote.stream_chat(talk, **given))[-1], list(own.stream_chat(talk, **given))[-1])
    same(remote.complete(PROMPT, **given), own.complete(PROMPT, **given))
    same(remote.complete(PROMPT, formatted=True, **given), own.complete(PROMPT, formatted=True, **given))
    same(await remote.acomplete(PROMPT, **given), own.complete(PROMPT, **given))
    last = [each async for each in await remote.astream_complete(PROMPT, **given)][-1]
    same(last, list(own.stream_complete(PROMPT, **given))[-1])


def search(query: str) -> str:
    """Look something up."""
    return query


def test_tools_are_called(address, tool_lm):
    llm = RagBiasLLM(base_url=f"{address}/v1", model_name="tools", max_new_tokens=100)
    assert llm.metadata.is_function_calling_model
    with saying(tool_lm, '<tool_call>\n{"name": "search", "arguments": {"query": "gate"}}\n</tool_call>'):
        response = llm.chat_with_tools([FunctionTool.from_defaults(search)], "Go.", tool_required=True)
    (call,) = llm.get_tool_calls_from_response(response)
    assert (call.tool_name, call.tool_kwargs) == ("search", {"query": "gate"})


def test_errors_name_what_is_wrong(address, remote, small_lm):
    with pytest.raises(PromptTooLongError, match="too many for an answer .* window of 16384"):
        remote.complete("owl " * 20_000)
    with pytest.raises(ArgumentError, match="no_repeat_ngram_size: not supported by servers"):
        remote.complete(PROMPT, no_repeat_ngram_size=3)
    with pytest.raises(ServerError, match="no model"):
        RagBiasLLM(base_url=address, model_name="other")
    with pytest.raises(ArgumentError, match="give one of them"):
        RagBiasLLM(base_url=address, model_name="small", lm=small_lm)
    with pytest.raises(ArgumentError, match="base_url and document_cache"):
        RagBiasLLM(base_url=address, model_name="small", document_cache=DocumentCache())
    with pytest.raises(ArgumentError, match="caches documents itself"):
        warm(remote, [TextNode(text="One gate."), TextNode(text="One wall.")])
