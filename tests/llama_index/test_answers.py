"""Complete and chat: text, usage, report, system prompt, arguments of a call."""

import pytest
from llama_index.core.base.llms.types import CitableBlock, CitationBlock, TextBlock, ThinkingBlock
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.llms import ChatMessage, MessageRole
from llama_index.llms.ragbias import RagBiasLLM

import ragbias
from ragbias.errors import RagBiasError, UnknownMethodError
from ragbias.methods import Pine
from support.integrations import REPORT_KEYS
from support.scripted import RecordingLM

DOCUMENTS = ["The Falcon Station gate is red.", "The Ivory Bridge gate is blue.", "The Kitten Tower gate is green."]
PROMPT = "Context:\n" + "\n\n".join(DOCUMENTS) + "\n\nQuestion: Which gate is blue?\nAnswer:"


def test_complete_gives_only_the_answer_with_usage_and_report(llm):
    response = llm.complete(PROMPT, documents=DOCUMENTS)
    assert PROMPT not in response.text
    usage = response.raw["usage"]
    assert usage["completion_tokens"] <= 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert {key: response.additional_kwargs[key] for key in usage} == usage
    report = response.additional_kwargs["ragbias"]
    assert set(report) == REPORT_KEYS
    assert (report["method_ran"], report["source"], report["n_found"]) == ("pine", "documents", 3)
    assert llm.last_report == report


def test_chat_carries_the_details_beside_the_message_not_in_it(llm):
    response = llm.chat([ChatMessage(content=PROMPT)], documents=DOCUMENTS)
    assert response.message.role == MessageRole.ASSISTANT
    assert response.message.additional_kwargs == {}
    assert response.additional_kwargs["ragbias"]["n_found"] == 3
    assert response.raw["finish_reason"] in {"stop", "length"}


def test_chat_and_complete_of_a_user_message_share_a_prompt(llm):
    assert llm.chat([ChatMessage(content=PROMPT)]).message.content == llm.complete(PROMPT).text


def test_answer_equals_that_of_the_core(llm, lm):
    text = lm.chat_text([{"role": "user", "content": PROMPT}])
    assert (
        llm.complete(PROMPT, documents=DOCUMENTS).text == lm.generate(text, documents=DOCUMENTS, max_new_tokens=8).text
    )


def test_prompt_has_exactly_one_bos(llm, lm, tokenizer):
    text = lm.chat_text([{"role": "user", "content": PROMPT}])
    expected = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert expected.count(tokenizer.bos_token_id) == 1
    assert llm.complete(PROMPT).raw["usage"]["prompt_tokens"] == len(expected)


def test_documents_named_by_the_context_manager_are_found(llm):
    with ragbias.documents(DOCUMENTS):
        assert llm.complete(PROMPT).additional_kwargs["ragbias"]["n_found"] == 3


def test_token_counting_handler_reads_the_usage(make_llm):
    counter = TokenCountingHandler()
    response = make_llm(callback_manager=CallbackManager([counter])).complete(PROMPT)
    assert counter.prompt_llm_token_count == response.raw["usage"]["prompt_tokens"]
    assert counter.completion_llm_token_count == response.raw["usage"]["completion_tokens"]


@pytest.mark.parametrize("is_chat_model", [True, False])
def test_the_system_prompt_is_part_of_complete(lm, is_chat_model):
    system, recording = "Answer in one word and never explain.", RecordingLM(lm)
    llm = RagBiasLLM(lm=recording, system_prompt=system, is_chat_model=is_chat_model, on_missing="ignore")
    llm.complete("Which gate?", max_tokens=1)
    (seen,) = recording.prompts
    assert seen.count(system) == 1
    assert seen.index(system) < seen.index("Which gate?")


def test_system_prompt_and_a_system_message_become_one(make_llm):
    messages = [ChatMessage(role="system", content="You know gates."), ChatMessage(content="Which gate?")]
    seen = make_llm(system_prompt="Be brief.")._chat_prompt(messages)
    assert "<|system|>\nBe brief.\n\nYou know gates.\n<|user|>" in seen


def test_own_prompt_functions_are_used(make_llm):
    llm = make_llm(
        completion_to_prompt=lambda prompt: f"[Q]{prompt}[A]",
        messages_to_prompt=lambda messages: "|".join(str(message.content) for message in messages),
    )
    assert llm._completion_prompt("x", False) == "[Q]x[A]"
    assert llm._completion_prompt("x", True) == "x"
    assert llm._chat_prompt([ChatMessage(content="a"), ChatMessage(content="b")]) == "a|b"


def test_query_wrapper_prompt_is_used(make_llm):
    llm = make_llm(query_wrapper_prompt="<U>{query_str}<A>", system_prompt="S")
    assert llm._completion_prompt("x", False) == "S\n\n<U>x<A>"


@pytest.mark.parametrize("name", ["max_tokens", "max_new_tokens"])
def test_length_of_a_call_is_honoured(llm, name):
    response = llm.complete(PROMPT, **{name: 3, "min_new_tokens": 3})
    assert response.additional_kwargs["completion_tokens"] == 3
    assert response.raw["finish_reason"] == "length"


def test_seed_repeats_a_sample_and_temperature_changes_it(make_llm):
    llm = make_llm(max_new_tokens=16)
    samples = [llm.complete(PROMPT, temperature=5.0, seed=seed).text for seed in (1, 1, 2)]
    assert samples[0] == samples[1] != samples[2]
    assert llm.complete(PROMPT, temperature=0).text == llm.complete(PROMPT).text


def test_do_sample_becomes_a_temperature(make_llm):
    llm = make_llm(max_new_tokens=16, generate_kwargs={"do_sample": True, "temperature": 5.0, "top_p": 0.9}, seed=1)
    assert (
        llm.complete(PROMPT).text
        == make_llm(max_new_tokens=16).complete(PROMPT, temperature=5.0, top_p=0.9, seed=1).text
    )
    assert llm.complete(PROMPT, do_sample=False).text == llm.complete(PROMPT, temperature=0).text


def test_stop_string_ends_the_answer_before_it(make_llm):
    llm = make_llm(max_new_tokens=24)
    whole = llm.complete(PROMPT).text
    stop = whole[len(whole) // 2 :][:3]
    for given in (stop, [stop]):
        response = llm.complete(PROMPT, stop=given)
        assert response.text == whole[: whole.index(stop)]
        assert response.raw["finish_reason"] == "stop"
    assert make_llm(max_new_tokens=24, stop=[stop]).complete(PROMPT).text == whole[: whole.index(stop)]


def test_method_of_a_call_is_honoured(llm):
    assert llm.complete(PROMPT, documents=DOCUMENTS, method="none").additional_kwargs["ragbias"]["method_ran"] == "none"
    report = llm.complete(PROMPT, documents=DOCUMENTS, method=Pine(order="canonical")).additional_kwargs["ragbias"]
    assert report["method_ran"] == "pine"


def test_unknown_argument_names_itself_and_the_known_ones(llm):
    with pytest.raises(RagBiasError, match=r"unknown argument 'tempurature'.*temperature"):
        llm.complete(PROMPT, tempurature=1.0)
    with pytest.raises(RagBiasError, match="the same"):
        llm.complete(PROMPT, max_tokens=1, max_new_tokens=1)


def test_stopping_ids_end_the_answer_and_spare_a_given_model(model, make_llm):
    own = model.generation_config.eos_token_id
    whole = make_llm().lm.generate(PROMPT, max_new_tokens=16).token_ids
    llm = make_llm(stopping_ids=[whole[5]], max_new_tokens=16)
    response = llm.complete(PROMPT, formatted=True)
    assert response.raw["finish_reason"] == "stop"
    assert response.raw["usage"]["completion_tokens"] == whole.index(whole[5]) + 1
    assert model.generation_config.eos_token_id == own
    assert make_llm(max_new_tokens=16).complete(PROMPT, formatted=True).raw["finish_reason"] == "length"


def test_settings_that_the_core_decides_are_refused(llm):
    for name in ("eos_token_id", "num_return_sequences"):
        with pytest.raises(RagBiasError, match=name):
            llm.complete(PROMPT, **{name: 2})


def test_unknown_method_is_refused_at_once_and_on_a_call(make_llm):
    with pytest.raises(UnknownMethodError, match=r"pyne.*pine"):
        make_llm(method="pyne")
    with pytest.raises(UnknownMethodError, match=r"pyne.*pine"):
        make_llm().complete(PROMPT, method="pyne")


def test_unknown_field_is_refused(make_llm):
    with pytest.raises(RagBiasError, match="tempurature"):
        make_llm(tempurature=1.0)


def test_image_in_a_message_is_refused(llm):
    from llama_index.core.llms import ImageBlock, TextBlock

    with pytest.raises(RagBiasError, match="image"):
        llm.chat([ChatMessage(blocks=[TextBlock(text="What is this?"), ImageBlock(url="http://localhost/x.png")])])


def test_citable_blocks_are_text_and_others_are_refused_by_type(llm):
    whole = llm.chat([ChatMessage(f"gates\n{PROMPT}")], documents=DOCUMENTS)
    context, question = PROMPT.split("\n\nQuestion", 1)
    cited = CitableBlock(title="gates", source="gates.txt", content=[TextBlock(text=context)])
    blocks = [cited, TextBlock(text="\nQuestion" + question)]
    response = llm.chat([ChatMessage(blocks=blocks)], documents=DOCUMENTS)
    assert (response.message.content, response.raw) == (whole.message.content, whole.raw)
    citation = CitationBlock(cited_content=TextBlock(text="x"), source="x", title="x", additional_location_info={})
    with pytest.raises(RagBiasError, match="a citation block"):
        llm.chat([ChatMessage(blocks=[citation])])
    thought = ChatMessage(role="assistant", blocks=[ThinkingBlock(content="hm"), TextBlock(text="yes")])
    plain = ChatMessage(role="assistant", content="yes")
    answers = [llm.chat([ChatMessage("a?"), each, ChatMessage("b?")]).raw for each in (thought, plain)]
    assert answers[0] == answers[1]


def test_metadata_comes_from_the_model(llm, make_llm, lm):
    assert llm.metadata.context_window == lm.window
    assert llm.metadata.is_chat_model
    assert llm.metadata.num_output == 8
    assert not make_llm(is_chat_model=False).metadata.is_chat_model
    assert make_llm(context_window=512).metadata.context_window == 512
    with pytest.warns(UserWarning, match="more than the model's") as seen:
        assert RagBiasLLM(lm=lm, context_window=10**6).metadata.context_window == lm.window
    assert [each.filename for each in seen] == [__file__]


def test_method_is_part_of_what_observers_see(make_llm):
    assert make_llm(method="none").to_payload()["method"] == "none"
    assert make_llm(method=Pine()).to_payload() != make_llm(method=Pine(order="canonical")).to_payload()


def test_model_and_tokenizer_objects_are_taken(model, tokenizer):
    llm = RagBiasLLM(model=model, tokenizer=tokenizer, max_new_tokens=4)
    assert llm.complete(PROMPT, documents=DOCUMENTS).additional_kwargs["ragbias"]["method_ran"] == "pine"


def test_model_is_loaded_by_path(model, tokenizer, llm, tmp_path):
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = RagBiasLLM(model_name=str(tmp_path), tokenizer_name=str(tmp_path), max_new_tokens=8)
    assert loaded.complete(PROMPT, documents=DOCUMENTS).text == llm.complete(PROMPT, documents=DOCUMENTS).text


def test_log_probabilities_come_in_both_shapes(llm, make_llm):
    response = llm.complete(PROMPT, documents=DOCUMENTS, logprobs=True)
    content = response.raw["logprobs"]["content"]
    assert response.logprobs is not None
    assert [[each["token"], each["logprob"]] for each in content] == [
        [each.token, each.logprob] for (each,) in response.logprobs
    ]
    assert "".join(each["token"] for each in content) == response.text and max(e["logprob"] for e in content) <= 0
    plain = llm.complete(PROMPT, documents=DOCUMENTS)
    assert plain.logprobs is None and "logprobs" not in plain.raw and plain.text == response.text
    chat = make_llm(logprobs=True)
    answer, *_, last = chat.chat([ChatMessage(PROMPT)]), *chat.stream_chat([ChatMessage(PROMPT)])
    assert answer.logprobs == last.logprobs and answer.logprobs
