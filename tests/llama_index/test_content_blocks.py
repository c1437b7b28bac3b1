"""Documents as content blocks, in the message or rendered by the chat template."""

from itertools import permutations

import pytest
from llama_index.core.base.llms.types import CitableBlock, DocumentBlock, TextBlock
from llama_index.core.llms import ChatMessage
from llama_index.llms.ragbias import MissingDocumentsWarning, RagBiasLLM

import ragbias
from ragbias.errors import RagBiasError
from support.integrations import COMMAND_R, GATES, GRANITE, TURN_EACH, TURNS, recording


def blocks(titles) -> list[CitableBlock | DocumentBlock]:
    citable = [CitableBlock(title=title, source="s", content=[TextBlock(text=GATES[title])]) for title in titles[:2]]
    return [*citable, *(DocumentBlock(title=title, data=GATES[title].encode()) for title in titles[2:])]


@pytest.mark.parametrize("template", [TURNS, COMMAND_R])
def test_blocks_are_documents_with_title_and_text(lm, template):
    recorder = recording(lm, template)
    llm = RagBiasLLM(lm=recorder, max_new_tokens=6, on_missing="raise")
    answers = set()
    for titles in permutations(GATES):
        message = ChatMessage(blocks=[*blocks(titles), TextBlock(text="Which gate is blue?")])
        answers.add(llm.chat([message]).message.content)
        report = llm.last_report
        assert (report["method_ran"], report["source"], report["n_found"]) == ("pine", "documents", 3)
        texts = [recorder.tokenizer.decode(ids) for ids in recorder.requests[-1].tokens.documents]
        assert all(title in text and GATES[title] in text for title, text in zip(titles, texts, strict=True))
    assert len(answers) == 1 and ("<results>" in recorder.prompts[-1]) == (template is COMMAND_R)


@pytest.mark.parametrize("template", [GRANITE, TURN_EACH, COMMAND_R])
def test_a_template_renders_the_documents_of_a_call(lm, template):
    recorder = recording(lm, template)
    llm = RagBiasLLM(lm=recorder, max_new_tokens=6, on_missing="raise")
    documents = list(GATES.values())
    answers = {llm.chat([ChatMessage("Which?")], documents=order).message.content for order in permutations(documents)}
    assert len(answers) == 1 and llm.last_report["n_found"] == 3 and "Owls sleep." in recorder.prompts[-1]
    inside = "\n\n".join([*documents, "Which?"])
    llm.chat([ChatMessage(inside)], documents=documents)
    assert recorder.prompts[-1].count("Owls sleep.") == 1


def test_blocks_replace_default_documents(lm):
    llm = RagBiasLLM(lm=lm, max_new_tokens=2, on_missing="raise", generate_kwargs={"documents": ["A cat.", "A dog."]})
    response = llm.chat([ChatMessage(blocks=[*blocks(list(GATES)), TextBlock(text="Which gate is blue?")])])
    assert llm.last_report["n_found"] == 3
    response.raw["ragbias"].clear()
    assert llm.last_report["n_found"] == 3


def test_a_block_of_documents_replaces_default_documents(lm):
    documents = list(GATES.values())
    prompt = "\n\n".join([*documents, "Which gate is blue?"])
    llm = RagBiasLLM(lm=lm, max_new_tokens=2, generate_kwargs={"documents": documents[:2], "max_tokens": 3})
    assert llm.complete(prompt).raw["usage"]["completion_tokens"] == 3 and llm.last_report["n_found"] == 2
    with ragbias.documents(documents):
        llm.complete(prompt)
    assert llm.last_report["n_found"] == 3


@pytest.mark.parametrize("prompt", [None, 5, b"x", []])
def test_a_prompt_that_is_no_text_is_refused(lm, prompt):
    with pytest.raises(ragbias.errors.WrongTypeError, match="the prompt is .*; expected a string"):
        RagBiasLLM(lm=lm, max_new_tokens=2).complete(prompt)


def test_a_saved_model_keeps_its_method():
    llm = RagBiasLLM(model_name="tiny", method=ragbias.methods.Pine(from_layer=1))
    assert "from_layer=1" in llm.to_dict()["method"]
    assert ragbias.methods.get(RagBiasLLM.from_json(llm.to_json()).method) == llm.method


def test_a_copy_has_a_last_report_of_its_own(lm):
    llm = RagBiasLLM(lm=lm, max_new_tokens=2)
    copied, documents = llm.model_copy(), list(GATES.values())
    prompt = "\n\n".join([*documents, "Which?"])
    copied.complete(prompt, documents=documents, method="pcw")
    llm.complete(prompt, documents=documents, method="none")
    assert (copied.last_report["method_ran"], llm.last_report["method_ran"]) == ("pcw", "none")


def test_documents_that_the_message_has_are_not_rendered_again(lm):
    recorder = recording(lm, GRANITE)
    llm = RagBiasLLM(lm=recorder, max_new_tokens=2)
    first, *others = GATES.values()
    with pytest.warns(MissingDocumentsWarning, match="2 of 3 expected documents"):
        llm.chat([ChatMessage("\n\n".join([*others, first.upper(), "Which?"]))], documents=[first, *others])
    assert all(recorder.prompts[-1].count(text) == 1 for text in others)


def test_a_template_that_ignores_documents_is_noticed(lm):
    llm = RagBiasLLM(lm=recording(lm, TURNS), max_new_tokens=2)
    with pytest.warns(MissingDocumentsWarning, match="0 of 3 expected documents"):
        llm.chat([ChatMessage("Which?")], documents=list(GATES.values()))


@pytest.mark.parametrize("block", [DocumentBlock(data=b"%PDF-1.4 x"), DocumentBlock(url="http://127.0.0.1/a.txt")])
def test_a_document_that_is_no_text_is_refused(llm, block):
    with pytest.raises(RagBiasError, match="pass its text in a CitableBlock"):
        llm.chat([ChatMessage(blocks=[block, TextBlock(text="Which?")])])
