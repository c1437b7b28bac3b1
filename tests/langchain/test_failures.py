"""Failures reach the caller, the report or a warning."""

import asyncio
import threading
import warnings

import pytest
import torch
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, ChatMessage, FunctionMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableLambda

from langchain_ragbias import ChatRagBias, MissingDocumentsWarning, RagBiasPipeline
from langchain_ragbias.messages import template_messages
from ragbias.boundaries import documents
from ragbias.errors import (
    ArgumentError,
    DocumentNotFoundError,
    NoDocumentsError,
    PromptTooLongError,
    UnknownMethodError,
)
from ragbias.frameworks.chat_documents import join_parts
from ragbias.methods import Pine
from support.concurrency import wait_until
from support.prompts import DOCUMENTS, TEXT


def running() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("ragbias") and name != "ragbias-remote"]  # which never ends


def test_a_dropped_stream_stops_and_leaves_the_model_usable(chat):
    before = chat.invoke(TEXT, documents=DOCUMENTS).content
    stream = chat.stream(TEXT, documents=DOCUMENTS, max_tokens=4000)
    next(stream)
    stream.close()
    wait_until(lambda: not running(), 20)
    assert chat.invoke(TEXT, documents=DOCUMENTS).content == before


async def test_a_dropped_async_stream_stops(chat, forwards):
    stream = chat.astream(TEXT, documents=DOCUMENTS, max_tokens=4000)
    await anext(stream)
    await stream.aclose()
    await asyncio.to_thread(wait_until, lambda: not running(), 20)
    assert len(forwards) < 1000


async def test_a_dropped_stream_leaves_its_report(chat, completion):
    for llm in (chat, completion):
        for model in (llm, RunnableLambda(lambda text: text) | llm.bind(documents=DOCUMENTS)):
            given = {"documents": DOCUMENTS} if model is llm else {}
            stream = model.stream(TEXT, **given)
            next(stream)
            stream.close()
            assert (llm.last_report["method_ran"], llm.last_report["n_found"]) == ("pine", len(DOCUMENTS))
            llm.invoke("Hello", method="none")
            async for _ in (pieces := model.astream(TEXT, **given)):
                break
            await pieces.aclose()
            assert (llm.last_report["method_ran"], llm.last_report["n_found"]) == ("pine", len(DOCUMENTS))
            llm.invoke("Hello", method="none")


def test_unknown_methods_are_named_by_the_model_and_its_calls(lm, chat):
    with pytest.raises(UnknownMethodError, match="pines"):
        ChatRagBias(lm=lm, method="pines")
    with pytest.raises(UnknownMethodError, match="pines"):
        chat.invoke("hello", method="pines")


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"document": DOCUMENTS}, ArgumentError, "unknown argument 'document'; did you mean 'documents'"),
        ({"documents": "one string"}, TypeError, "list"),
        ({"documents": [3]}, TypeError, "int"),
        ({"documents": 3}, TypeError, "list"),
        ({"documents": dict.fromkeys(DOCUMENTS)}, TypeError, "got dict"),
        ({"documents": iter(DOCUMENTS)}, TypeError, "list_iterator"),
        ({"documents": (each for each in DOCUMENTS)}, TypeError, "generator"),
        ({"pipeline_kwargs": 3}, ArgumentError, "pipeline_kwargs=3"),
        ({"method": 3}, UnknownMethodError, "method"),
        ({"max_tokens": 8, "max_new_tokens": 8}, ArgumentError, "max_tokens and max_new_tokens are the same"),
        ({"max_tokens": "8"}, TypeError, "max_tokens"),
        ({"max_tokens": True}, TypeError, "max_tokens"),
        ({"temperature": "hot"}, TypeError, "temperature"),
        ({"seed": 1.5}, TypeError, "seed"),
        ({"stop": [1]}, TypeError, "stop"),
    ],
)
def test_wrong_arguments_of_a_call_are_errors(chat, completion, arguments, error, text):
    for llm in (chat, completion):
        with pytest.raises(error, match=text):
            llm.invoke("hello", **arguments)
        with pytest.raises(error, match=text):
            list(llm.stream("hello", **arguments))


@pytest.mark.parametrize("kind", [ChatRagBias, RagBiasPipeline])
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"metod": "pine"}, "unknown argument 'metod'; did you mean 'method'"),
        ({"max_token": 5}, "unknown argument 'max_token'; did you mean 'max_tokens'"),
        ({"xyzzy": 5}, "unknown argument 'xyzzy'; leave it out"),
        ({"on_missing": "shout"}, "on_missing: .*'shout'"),
        ({"lm": 5}, "DebiasedLM.*got 5"),
        ({"temperature": -1}, r"temperature=-1.0; expected a number >= 0 \(0 is greedy\)"),
        ({"top_p": 5}, "top_p=5.0; expected a number > 0 and <= 1"),
        ({"top_k": 0}, "top_k=0; expected a whole number >= 1"),
        ({"max_tokens": 0}, "max_tokens=0; expected a whole number >= 1"),
        ({"stop": ""}, r"stop=\[''\]; expected a stop string that is not empty"),
        ({"options": 5}, "options=5; expected a dict"),
        ({"options": {"topp": 5}}, "unknown argument 'topp'; did you mean 'top_p'"),
        ({"pipeline": 5}, r"pipeline=5; expected a transformers.pipeline\("),
    ],
)
def test_wrong_arguments_of_the_constructor_are_errors(lm, kind, fields, text):
    with pytest.raises(ArgumentError, match=text):
        kind(**({} if "pipeline" in fields else {"lm": lm}) | fields)


def test_half_a_surrogate_pair_is_refused(chat, completion):
    for llm in (chat, completion):
        with pytest.raises(
            ArgumentError, match=r"the prompt contains '\\udc80', half of a surrogate pair, at character"
        ):
            llm.invoke("ab\udc80")
        with pytest.raises(ArgumentError, match="the text contains"):
            llm.get_num_tokens("ab\udc80")
        texts = ["ab\udc80", TEXT[:20]]
        with documents(texts), pytest.raises(ArgumentError, match=r"document 0 of 2 contains '\\udc80'"):
            llm.invoke("\n\n".join([*texts, "What?"]))


@pytest.mark.parametrize("tools", [5, [5], "search"])
def test_wrong_tools_are_an_error_that_shows_them(tool_lm, tools):
    llm = ChatRagBias(lm=tool_lm)
    for call in (llm.bind_tools, lambda tools: llm.invoke("Hello", tools=tools)):
        with pytest.raises(ArgumentError, match=f"{tools if tools != [5] else 5}"):
            call(tools)


def test_a_module_that_is_no_pipeline_needs_a_tokenizer(lm):
    with pytest.raises(ArgumentError, match="pass tokenizer or tokenizer_name"):
        RagBiasPipeline(model=lm.model)


def test_a_prompt_longer_than_the_window_is_refused(chat):
    with pytest.raises(PromptTooLongError, match="16384"):
        chat.invoke("book " * 17000)


def test_documents_not_in_the_prompt_warn_once_per_call_site(lm):
    llm = ChatRagBias(lm=lm, max_tokens=2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            message = llm.invoke("No context.", documents=DOCUMENTS)
        list(llm.stream("No context.", documents=DOCUMENTS))
    report = message.response_metadata["ragbias"]
    assert (report["method_requested"], report["method_ran"]) == ("pine", "none")
    assert "given explicitly" in report["reason"]
    warned = [each for each in seen if each.category is MissingDocumentsWarning]
    assert [each.filename for each in warned] == [__file__] * 2
    assert warned[1].lineno == warned[0].lineno + 1
    assert "given explicitly" in str(warned[0].message)


def test_a_chain_that_rewrites_its_documents_warns(lm, retriever):
    llm = ChatRagBias(lm=lm, max_tokens=2)
    chain = retriever | RunnableLambda(lambda found: " ".join(d.page_content.upper() for d in found)) | llm
    with pytest.warns(MissingDocumentsWarning, match="retrieved in this run"):
        chain.invoke("Which?")


def warnings_of(work) -> list[tuple[str, str]]:
    """Return file and text of each warning about missing documents."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        work()
    return [(each.filename, str(each.message)) for each in seen if each.category is MissingDocumentsWarning]


@pytest.mark.parametrize("how", ["alone", "in a chain", "in a stream", "in an agent"])
def test_a_line_that_never_finds_documents_warns_once(lm, how):
    llm = ChatRagBias(lm=lm, max_tokens=2)
    chain = RunnableLambda(str) | llm
    agent = create_agent(llm)

    def talk() -> None:
        for _ in range(3):
            if how == "alone":
                llm.invoke("Hello!")
            elif how == "in a chain":
                chain.invoke("Hello!")
            elif how == "in a stream":
                list(chain.stream("Hello!"))
            else:
                agent.invoke({"messages": [HumanMessage("Hello!")]})

    ((filename, text),) = warnings_of(talk)
    assert filename == __file__
    assert "located none in the prompt" in text
    assert "pass documents= as they occur in the prompt, or retrieve inside the chain, or documents=[] if" in text


async def test_a_warning_names_the_line_that_awaits_the_model(lm):
    async def read() -> None:
        async for _ in ChatRagBias(lm=lm, max_tokens=2).astream("Hello!"):
            pass

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        await read()
    (warning,) = [each for each in seen if each.category is MissingDocumentsWarning]
    assert (warning.filename, warning.lineno) == (__file__, read.__code__.co_firstlineno + 1)


def test_a_request_before_its_runs_retrieval_is_no_mistake(lm, retriever):
    llm = ChatRagBias(lm=lm, max_tokens=2)
    rewriting = RunnableLambda(lambda question: f"Rewrite: {question}") | llm | RunnableLambda(lambda _: "Which?")
    chain = (
        rewriting | retriever | RunnableLambda(lambda found: "\n\n".join(d.page_content for d in found) + "\nOK?") | llm
    )
    assert warnings_of(lambda: chain.invoke("Which gate?")) == []
    assert len(warnings_of(lambda: llm.invoke("Hello!"))) == 1


def test_plain_talk_does_not_warn_if_that_is_wanted(lm):
    assert warnings_of(lambda: ChatRagBias(lm=lm, max_tokens=2, on_missing="ignore").invoke("Hello!")) == []
    assert warnings_of(lambda: ChatRagBias(lm=lm, max_tokens=2, method="none").invoke("Hello!")) == []
    assert warnings_of(lambda: ChatRagBias(lm=lm, max_tokens=2).invoke("Hello!", documents=[])) == []


def test_missing_documents_raise_if_wanted(lm):
    llm = ChatRagBias(lm=lm, max_tokens=2, on_missing="raise")
    with pytest.raises(NoDocumentsError, match="located none in the prompt"):
        llm.invoke("Hello!")
    with pytest.raises(NoDocumentsError, match="located 0 of 3 expected documents"):
        list(llm.stream("Hello!", documents=DOCUMENTS))
    with pytest.raises(DocumentNotFoundError, match="located 3 of 4 expected documents"):
        llm.invoke(TEXT, documents=[*DOCUMENTS, "A fourth that is not there."])
    assert llm.invoke(TEXT, documents=DOCUMENTS).response_metadata["ragbias"]["method_ran"] == "pine"
    assert llm.invoke("Hello!", method="none").response_metadata["ragbias"]["method_ran"] == "none"
    assert issubclass(NoDocumentsError, RuntimeError)


def test_missing_documents_are_ignored_if_wanted(lm):
    with warnings.catch_warnings():
        warnings.simplefilter("error", MissingDocumentsWarning)
        ChatRagBias(lm=lm, max_tokens=2, on_missing="ignore").invoke("No context.", documents=DOCUMENTS)


@pytest.mark.filterwarnings("ignore::langchain_ragbias.MissingDocumentsWarning")
def test_documents_at_the_end_of_a_prompt_run_plain_and_warn(completion):
    text = "Question: Which is green?\nContext: " + "\n\n".join(DOCUMENTS)
    result = completion.generate([text], documents=DOCUMENTS)
    report = result.generations[0][0].generation_info["ragbias"]
    assert report["method_ran"] == "none"
    assert (report["n_found"], report["reason"]) == (
        3,
        "the prompt ends with the documents, so no question follows them",
    )


def test_messages_of_every_role_are_converted():
    converted = join_parts(
        template_messages(
            [
                SystemMessage("be brief"),
                HumanMessage([{"type": "text", "text": "what"}, " now?"]),
                AIMessage("", tool_calls=[{"name": "search", "args": {"q": "x"}, "id": "1"}]),
                ToolMessage("found", tool_call_id="1", name="search"),
                ChatMessage("note", role="critic"),
            ]
        )
    )
    assert [message["role"] for message in converted] == ["system", "user", "assistant", "tool", "critic"]
    assert converted[1]["content"] == "what now?"
    assert converted[2]["tool_calls"][0]["function"] == {"name": "search", "arguments": {"q": "x"}}
    assert converted[3]["name"] == "search"


def test_content_that_is_no_text_is_refused(chat):
    image = {"type": "image_url", "image_url": {"url": "http://localhost/a.png"}}
    with pytest.raises(ArgumentError, match="image"):
        chat.invoke([HumanMessage([image])])
    with pytest.raises(ArgumentError, match="FunctionMessage"):
        chat.invoke([FunctionMessage("x", name="f")])


def test_documents_may_be_objects_or_strings_and_may_be_bound(chat):
    plain = chat.invoke(TEXT, documents=DOCUMENTS)
    objects = chat.invoke(TEXT, documents=[Document(text) for text in DOCUMENTS])
    bound = chat.bind(documents=DOCUMENTS).invoke(TEXT)
    reports = [message.response_metadata["ragbias"] for message in (plain, objects, bound)]
    assert reports[0] == reports[1] == reports[2]
    assert reports[0]["source"] == "documents"
    assert plain.content == objects.content == bound.content


def test_a_model_is_unchanged_after_an_error(lm, chat):
    with torch.no_grad():
        ids = torch.tensor([[1, 5, 9]])
        before = lm.model(ids).logits
        with pytest.raises(PromptTooLongError, match="too many for an answer .* window of 16384"):
            chat.invoke("book " * 17000)
        assert torch.equal(lm.model(ids).logits, before)


def test_a_method_may_be_an_instance(lm):
    llm = ChatRagBias(lm=lm, method=Pine(order="importance"), max_tokens=2)
    assert llm.invoke(TEXT, documents=DOCUMENTS).response_metadata["ragbias"]["method_ran"] == "pine"


def test_a_one_shot_iterator_is_refused_however_it_is_bound(chat):
    bound = chat.bind(documents=map(str, DOCUMENTS))
    for ask in (lambda: bound.invoke(TEXT), lambda: bound.batch([TEXT, TEXT])):
        with pytest.raises(TypeError, match=r"a map, which only one call can read; write list\(documents\)"):
            ask()


def test_odd_metadata_break_nothing(chat):
    class Unprintable:
        def __str__(self):
            raise ValueError("no")

    documents = [Document(text, metadata={(1, 2): "a", "x": Unprintable()}) for text in DOCUMENTS]
    assert chat.invoke(TEXT, documents=documents).response_metadata["ragbias"]["n_found"] == 3
    (RunnableLambda(lambda _: documents) | RunnableLambda(lambda _: TEXT) | chat).invoke("x")
    assert (chat.last_report["source"], chat.last_report["n_found"], chat.last_report["reason"]) == ("run", 3, "")


def test_json_of_no_conversation_is_refused(chat):
    with pytest.raises(ArgumentError, match="no message"):
        chat.invoke([], response_format={"type": "json_object"})


def test_tools_that_are_no_functions_are_refused_by_name(tool_lm):
    with pytest.raises(ArgumentError, match=r"web_search_preview.* is not a function"):
        ChatRagBias(lm=tool_lm).bind_tools([{"type": "web_search_preview"}])
