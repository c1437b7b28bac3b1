"""Every argument of ``HuggingFaceLLM`` works the same, or is refused by name with a reason."""

import inspect
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.output_parsers import PydanticOutputParser
from llama_index.core.prompts import PromptTemplate
from llama_index.core.types import PydanticProgramMode
from llama_index.llms.huggingface import HuggingFaceLLM
from llama_index.llms.ragbias import RagBiasLLM, RagBiasLLMOptions
from pydantic import BaseModel
from transformers import LlamaConfig, LlamaForCausalLM

from ragbias.errors import ArgumentError, RagBiasError
from ragbias.generation import arguments
from support.gguf_files import write_gguf

SIGNATURE = inspect.signature(HuggingFaceLLM.__init__).parameters
PROMPT = "Question: Which gate is blue?\nAnswer:"


class Gate(BaseModel):
    color: str


def join(messages: Any) -> str:
    return "|".join(str(message.content) for message in messages)


VALUES: dict[str, Any] = {
    "context_window": 2048,
    "max_new_tokens": 4,
    "query_wrapper_prompt": PromptTemplate("<{query_str}>"),
    "tokenizer_name": "tiny",
    "model_name": "tiny",
    "device_map": "cpu",
    "stopping_ids": [5],
    "tokenizer_kwargs": {"padding_side": "left"},
    "tokenizer_outputs_to_remove": ["token_type_ids"],
    "model_kwargs": {"dtype": "float32"},
    "generate_kwargs": {"do_sample": True, "temperature": 0.5, "top_k": 5, "pad_token_id": 0, "num_beams": 1},
    "is_chat_model": False,
    "callback_manager": CallbackManager(),
    "system_prompt": "Be brief.",
    "messages_to_prompt": join,
    "completion_to_prompt": str.upper,
    "pydantic_program_mode": PydanticProgramMode.LLM,
    "output_parser": PydanticOutputParser(Gate),
}
OBJECTS = {"model", "tokenizer"}  # see test_model_and_tokenizer_objects_are_taken


def test_no_argument_or_field_of_the_stock_class_is_missing():
    stock = {*SIGNATURE, *HuggingFaceLLM.model_fields} - {"self"}
    assert stock <= {*RagBiasLLM.model_fields, *RagBiasLLMOptions.model_fields}
    assert set(SIGNATURE) - {"self"} == {*VALUES, *OBJECTS}


@pytest.mark.parametrize("name", VALUES)
def test_each_argument_is_taken(name):
    llm = RagBiasLLM(**{"model_name": "tiny", "max_new_tokens": 4, name: VALUES[name]})
    assert getattr(llm if name in RagBiasLLM.model_fields else llm.options, name) == VALUES[name]
    assert llm.complete(PROMPT).additional_kwargs["completion_tokens"] <= 4


def test_defaults_of_the_stock_class_are_taken(make_llm):
    defaults = {name: each.default for name, each in SIGNATURE.items() if name != "self"}
    llm = make_llm(**{**defaults, "model_name": "tiny", "tokenizer_name": "tiny"})
    assert llm._completion_prompt("x", False) == "x"
    assert not llm.metadata.is_chat_model


def test_same_prompt_reaches_the_model(make_llm):
    def template(messages: Any) -> str:
        return "".join(f"[{message.role.value}]{message.content}" for message in messages)

    llm = make_llm(messages_to_prompt=template, query_wrapper_prompt="<{query_str}>", is_chat_model=False)
    messages = [ChatMessage(role="system", content="S"), ChatMessage(content="Q")]
    assert llm._chat_prompt(messages) == template(messages)
    assert llm._completion_prompt("Q", False) == "<Q>"


@pytest.mark.parametrize(
    ("generate_kwargs", "reason"),
    [
        ({"eos_token_id": 5}, "eos_token_id.*stopping_ids"),
        ({"max_length": 50}, "max_length.*max_new_tokens"),
        ({"num_beams": 4}, "num_beams=4.*only num_beams=1"),
        ({"num_return_sequences": 2}, "num_return_sequences=2"),
        ({"stop_strings": ["x"]}, r"stop_strings.*stop="),
        ({"streamer": object()}, "streamer.*stream_complete"),
        ({"temperature": "hot"}, "temperature='hot'.*number"),
        ({"top_p": 2.0}, "top_p=2.0"),
        ({"seed": 1.5}, "seed=1.5"),
        ({"min_new_tokens": "a"}, "min_new_tokens='a'.*whole number"),
        ({"watermarking_config": 3}, "watermarking_config=3.*dict"),
        ({"dola_layers": "low"}, "dola_layers is not an argument, because RagBiasLLM sets it"),
        ({"tempurature": 1.0}, "unknown argument 'tempurature'.*temperature"),
    ],
)
def test_unsupported_settings_are_refused_by_name_at_once(make_llm, generate_kwargs, reason):
    with pytest.raises(RagBiasError, match=reason):
        make_llm(generate_kwargs=generate_kwargs)


@pytest.mark.parametrize("name", ["input_ids", "attention_mask"])
def test_outputs_that_the_model_needs_are_not_removed(make_llm, name):
    with pytest.raises(RagBiasError, match=f"{name}.*wrong prompt"):
        make_llm(tokenizer_outputs_to_remove=[name])


def test_the_class_has_at_most_15_own_fields_and_a_short_repr():
    assert len(RagBiasLLM.model_fields.keys() - FunctionCallingLLM.model_fields.keys()) <= 15
    llm = RagBiasLLM(model="tiny", method="none", top_p=0.5, api_key="secret")
    assert repr(llm) == "RagBiasLLM(model_name='tiny', method='none')"
    assert llm.options.top_p == 0.5 and llm.options.api_key is not None and "secret" not in repr(llm.options)


def test_without_a_model_the_error_shows_how_to_name_one():
    with pytest.raises(ArgumentError, match=r'no model given; name one, e.g. model_name="Qwen/'):
        RagBiasLLM(max_new_tokens=8)


def test_allowed_tokens_are_the_only_ones_generated(llm):
    (token,) = llm.lm.tokenizer("red", add_special_tokens=False)["input_ids"][:1]
    response = llm.complete(PROMPT, prefix_allowed_tokens_fn=lambda _index, _ids: [token], max_tokens=3)
    assert response.text == llm.lm.tokenizer.decode([token] * 3)


@pytest.mark.parametrize(
    "settings", [{"watermarking_config": {"bias": 2.0}}, {"exponential_decay_length_penalty": (2, 1.5)}]
)
def test_settings_that_are_objects_are_passed_on(llm, settings):
    assert llm.complete(PROMPT, **settings).raw["finish_reason"] in ("stop", "length")


def test_one_stop_string_is_a_list_of_one(make_llm):
    assert make_llm(stop="gate").stop == ["gate"]


@pytest.mark.parametrize("documents", [iter(["a", "b"]), (each for each in "ab"), {"a": 1, "b": 2}])
def test_documents_that_only_one_call_could_read_are_refused(llm, documents):
    with pytest.raises(TypeError, match=f"{type(documents).__name__}"):
        llm.complete("a\n\nb\n\nWhich?", documents=documents)


def test_history_with_a_malformed_call_is_refused(llm):
    broken = ChatMessage(role="assistant", blocks=[ToolCallBlock(tool_name="find", tool_kwargs="{bad")])
    with pytest.raises(ArgumentError, match="'find' has arguments that are not a JSON object"):
        llm.chat([ChatMessage("hi"), broken, ChatMessage("and?")])


def test_a_model_without_a_name_needs_its_tokenizer():
    config = LlamaConfig(vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    with pytest.raises(RagBiasError, match="pass tokenizer or tokenizer_name"):
        RagBiasLLM(model=LlamaForCausalLM(config))


def test_documents_that_are_no_list_are_named_by_their_type(lm):
    with pytest.raises(RagBiasError, match="must be a list of texts or documents, got bytes"):
        RagBiasLLM(lm=lm).complete("Which gate?", documents=b"one gate")


def test_names_of_other_classes_are_understood():
    llm = RagBiasLLM(model="tiny", max_tokens=None, dtype="bfloat16", device="cpu")
    assert (llm.model_name, llm.max_new_tokens) == ("tiny", 256)
    assert (str(llm.lm.model.dtype), llm.options.device_map) == ("torch.bfloat16", None)
    assert RagBiasLLM(model="tiny", max_tokens=3).max_new_tokens == 3


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"model": "tiny", "model_name": "other"}, "conflicts with"),
        ({"max_tokens": 3, "max_new_tokens": 4}, "conflicts with"),
        ({"dtype": "auto", "model_kwargs": {"dtype": "auto"}}, "twice"),
        ({"model": "tiny", "device": "cpu", "device_map": "auto"}, "give one of them"),
        ({"model": "tiny", "method": "pin"}, "did you mean 'pine'"),
        ({"model": "tiny", "method": "pin", "tokenizer_name": "/none"}, "did you mean 'pine'"),
    ],
)
def test_names_that_say_two_things_are_refused(fields, text):
    with pytest.raises(RagBiasError, match=text):
        RagBiasLLM(**fields)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"temprature": 1}, "unknown argument 'temprature'; did you mean 'temperature'"),
        ({"options": 5}, "options=5; expected a dict"),
        ({"options": {"top_q": 1}}, "unknown argument 'top_q'; did you mean 'top_"),
        ({"temperature": -1}, "temperature=-1.0; expected a number >= 0"),
        ({"max_new_tokens": 0}, "max_new_tokens=0; expected a whole number >= 1"),
        ({"top_p": 5}, "top_p=5.0; expected a number > 0 and <= 1"),
        ({"stop": ""}, "stop=.*expected a stop string that is not empty"),
        ({"context_window": 0}, "context_window.*greater than 0"),
        ({"model_kwargs": 5}, "model_kwargs.*dictionary"),
    ],
)
def test_wrong_arguments_of_the_constructor_are_refused(make_llm, fields, text):
    with pytest.raises(ArgumentError, match=text):
        make_llm(**fields)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ({"temprature": 1}, "unknown argument 'temprature'; did you mean 'temperature'"),
        ({"max_tokens": 3, "max_new_tokens": 3}, "the same argument; pass one of them"),
        ({"tools": []}, "unknown argument 'tools'"),
    ],
)
def test_wrong_arguments_of_a_call_are_refused(llm, call, text):
    with pytest.raises(ArgumentError, match=text):
        llm.complete(PROMPT, **call)


def test_half_a_surrogate_pair_is_refused(llm):
    for call in (llm.complete, lambda text: llm.stream_chat([ChatMessage(text)])):
        with pytest.raises(
            ArgumentError, match=r"the prompt contains '\\udc80', half of a surrogate pair, at character"
        ):
            call("ab\udc80")


def test_loading_arguments_are_refused_with_a_loaded_model(make_llm):
    with pytest.raises(ArgumentError, match="lm is loaded already"):
        make_llm(dtype="auto")


def test_a_gguf_file_is_loaded_by_its_folder_and_name(tmp_path, monkeypatch):
    monkeypatch.setenv("RAGBIAS_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "small.gguf", template="{{ messages[0].content }}")
    of_folder = RagBiasLLM(model_name=str(tmp_path), gguf_file="small.gguf", max_new_tokens=3)
    of_file = RagBiasLLM(model_name=str(tmp_path / "small.gguf"), max_new_tokens=3)
    assert of_folder.complete("ab cd").text == of_file.complete("ab cd").text


def test_the_settings_of_a_request_are_validated_once(make_llm, monkeypatch):
    llm = make_llm()
    calls, check = [], arguments.check_arguments

    def counted(given: dict[str, Any]) -> None:
        calls.append(given)
        check(given)

    monkeypatch.setattr(arguments, "check_arguments", counted)
    llm.complete("Hello", temperature=0.5, max_tokens=2)
    list(llm.stream_chat([ChatMessage(content="Hello")], max_tokens=2))
    assert len(calls) == 2
