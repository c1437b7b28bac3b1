"""Document content blocks count as documents, with title and text."""

from itertools import permutations

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from langchain_ragbias import ChatRagBias, MissingDocumentsWarning
from ragbias.errors import ArgumentError
from support.integrations import COMMAND_R, GATES, GRANITE, TURN_EACH, TURNS, recording
from support.prompts import DOCUMENTS


def text_plain(title: str, text: str) -> dict:
    return {"type": "text-plain", "mime_type": "text/plain", "title": title, "text": text}


def search_result(title: str, text: str) -> dict:
    return {"type": "search_result", "source": "x.org", "title": title, "content": [{"type": "text", "text": text}]}


def document(title: str, text: str) -> dict:
    return {"type": "document", "title": title, "source": {"type": "text", "media_type": "text/plain", "data": text}}


def document_of_parts(title: str, text: str) -> dict:
    parts = [{"type": "text", "text": f"{word}."} for word in text.split(".")]
    return {"type": "document", "title": title, "source": {"type": "content", "content": parts}}


QUESTION = {"type": "text", "text": "Which bridge is green?"}


@pytest.mark.parametrize("block", [text_plain, search_result, document, document_of_parts])
@pytest.mark.parametrize("carrier", ["user", "tool"])
def test_blocks_are_documents_in_any_order(chat, block, carrier):
    blocks = [block(f"Page {text[:10]}", text) for text in DOCUMENTS]
    answers = []
    for order in (blocks, blocks[::-1]):
        if carrier == "user":
            messages = [HumanMessage([{"type": "text", "text": "Use these:"}, *order, QUESTION])]
        else:
            call = AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": "1"}])
            messages = [HumanMessage("Search."), call, ToolMessage(order, tool_call_id="1"), HumanMessage([QUESTION])]
        answers.append(chat.invoke(messages, logprobs=True).response_metadata)
    assert [each["ragbias"]["n_found"] for each in answers] == [3, 3]
    assert {each["ragbias"]["method_ran"] for each in answers} == {"pine"}
    assert answers[0]["logprobs"] == answers[1]["logprobs"]


def test_empty_content_is_refused_only_from_users_and_system(chat):
    for message in (HumanMessage([]), SystemMessage([])):
        with pytest.raises(ArgumentError, match=f"a {message.type} message has an empty list as content; give a str"):
            chat.invoke([message, HumanMessage("Who?")])
    call = {"name": "search", "args": {}, "id": "1", "type": "tool_call"}
    for answer in (AIMessage([]), AIMessage([], tool_calls=[call])):
        chat.invoke([HumanMessage("Who?"), answer, ToolMessage([], tool_call_id="1")], documents=[])


def test_a_block_with_an_image_is_refused(chat):
    block = search_result("Owls", "Owls sleep.")
    block["content"].append({"type": "image", "base64": "iVBO"})
    with pytest.raises(ArgumentError, match="of type 'search_result' has a part of type 'image'; expected text only"):
        chat.invoke([HumanMessage([block, QUESTION])])


@pytest.mark.parametrize("template", [TURNS, COMMAND_R])
def test_blocks_are_rendered_by_the_template_if_it_can(lm, template):
    recorder = recording(lm, template)
    llm = ChatRagBias(lm=recorder, max_tokens=6, on_missing="raise")
    answers = set()
    for titles in permutations(GATES):
        message = HumanMessage([*(text_plain(title, GATES[title]) for title in titles), QUESTION])
        answers.add(llm.invoke([message]).content)
        report = llm.last_report
        assert (report["method_ran"], report["n_found"]) == ("pine", 3)
        texts = [recorder.tokenizer.decode(ids) for ids in recorder.requests[-1].tokens.documents]
        assert all(title in text and GATES[title] in text for title, text in zip(titles, texts, strict=True))
    assert len(answers) == 1 and ("<results>" in recorder.prompts[-1]) == (template is COMMAND_R)


@pytest.mark.parametrize("template", [GRANITE, TURN_EACH, COMMAND_R])
def test_a_template_renders_the_documents_of_a_call(lm, template):
    recorder = recording(lm, template)
    llm = ChatRagBias(lm=recorder, max_tokens=6, on_missing="raise")
    documents = list(GATES.values())
    answers = {llm.invoke("Which?", documents=list(order)).content for order in permutations(documents)}
    assert len(answers) == 1 and llm.last_report["n_found"] == 3 and "Owls sleep." in recorder.prompts[-1]
    llm.invoke("\n\n".join([*documents, "Which?"]), documents=documents)
    assert recorder.prompts[-1].count("Owls sleep.") == 1


def test_documents_that_the_message_has_are_not_rendered_again(lm):
    recorder = recording(lm, GRANITE)
    llm = ChatRagBias(lm=recorder, max_tokens=2)
    first, *others = GATES.values()
    with pytest.warns(MissingDocumentsWarning, match="2 of 3 expected documents"):
        llm.invoke("\n\n".join([*others, first.upper(), "Which?"]), documents=[first, *others])
    assert all(recorder.prompts[-1].count(text) == 1 for text in others)


def test_a_document_that_equals_a_role_is_rendered_or_missing(lm, chat):
    recorder = recording(lm, GRANITE)
    ChatRagBias(lm=recorder, max_tokens=2).invoke("Which?", documents=["user"])
    assert "Document 0\nuser\n" in recorder.prompts[-1]
    with pytest.warns(MissingDocumentsWarning, match="0 of 1 expected documents"):
        chat.invoke("Which?", documents=["user"])


def test_a_template_that_ignores_documents_is_noticed(lm):
    llm = ChatRagBias(lm=recording(lm, TURNS), max_tokens=2)
    with pytest.warns(MissingDocumentsWarning, match="0 of 3 expected documents"):
        llm.invoke("Which?", documents=list(GATES.values()))
