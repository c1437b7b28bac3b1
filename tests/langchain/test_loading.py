"""The stock classes' arguments work unchanged."""

import subprocess
import sys

import pytest
import torch
from langchain_core.messages import HumanMessage
from langchain_core.runnables import ConfigurableField
from transformers import pipeline

from langchain_ragbias import ChatRagBias, RagBiasPipeline
from ragbias.errors import ArgumentError, UnknownMethodError
from ragbias.lm import DebiasedLM
from support.gguf_files import write_gguf

QUESTION = "Question: Which bridge is green?\nAnswer:"
STOCK = dict(max_new_tokens=6, do_sample=False, repetition_penalty=1.03, return_full_text=False)
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # its import fails
import langchain_ragbias
langchain_ragbias.uninstall_listener()
try:
    langchain_ragbias.ChatRagBias
except ImportError as error:
    print(error)
"""


def test_torch_is_imported_on_first_use():
    printed = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert "import of torch halted" in printed


@pytest.mark.parametrize("kind", [ChatRagBias, RagBiasPipeline])
def test_from_model_id_takes_the_stock_arguments(kind):
    llm = kind.from_model_id(
        model_id="tiny",
        task="text-generation",
        device=-1,
        model_kwargs={"dtype": "float32"},
        pipeline_kwargs=STOCK,
        method="rotor",
    )
    assert (llm.max_tokens, llm.temperature, llm.method) == (6, None, "rotor")
    assert llm.options.repetition_penalty == 1.03
    assert llm.model_id == "tiny"
    assert llm.lm.model.device.type == "cpu"
    assert llm.invoke(QUESTION)


def test_answers_are_the_stock_pipelines_without_the_prompt():
    llm = RagBiasPipeline.from_model_id("tiny", pipeline_kwargs={"max_new_tokens": 6}, method="none")
    stock = pipeline("text-generation", model=llm.lm.model, tokenizer=llm.lm.tokenizer)
    expected = stock(QUESTION, max_new_tokens=6, max_length=None, do_sample=False, return_full_text=False)
    assert llm.invoke(QUESTION) == expected[0]["generated_text"]


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"do_sample": True, "temperature": 0.3, "top_k": 5, "top_p": 0.5}, {"temperature": 0.3}),
        ({"do_sample": False, "temperature": 0.3}, {"temperature": None}),
        ({"stop_sequence": "\n"}, {"stop": ["\n"]}),
        ({"stop_strings": ["a", "b"]}, {"stop": ["a", "b"]}),
        (None, {"max_tokens": 256}),
    ],
)
def test_pipeline_arguments_become_fields(lm, given, fields):
    llm = RagBiasPipeline(lm=lm, pipeline_kwargs=given)
    assert {name: getattr(llm, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"task": "summarization"}, "text-generation"),
        ({"backend": "openvino"}, "openvino"),
        ({"device": 0, "device_map": "auto"}, "device_map"),
        ({"device": 77}, "device=77"),
        ({"device": -2}, "device=-2"),
        ({"device_map": "auto", "model_kwargs": {"device_map": "cpu"}}, "twice"),
        ({"pipeline_kwargs": {"return_full_text": True}}, "return_full_text=True"),
        ({"pipeline_kwargs": {"num_beams": 4, "max_length": 9}}, "max_length, num_beams has no counterpart"),
        ({"pipeline_kwargs": {"max_new_tokens": 0}}, "max_tokens"),
        ({"pipeline_kwargs": 5}, "pipeline_kwargs=5; expected a dict"),
        ({"model_kwargs": 5}, "model_kwargs=5; expected a dict"),
        ({"model_kwargs": "x", "dtype": "auto"}, "model_kwargs='x'; expected a dict"),
        ({"model_kwargs": {"revision": "main", "tokenizer_kwargs": 5}}, "tokenizer_kwargs=5; expected a dict"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(arguments, text):
    with pytest.raises(ArgumentError, match=text):
        ChatRagBias.from_model_id("tiny", **arguments)


def test_a_device_map_goes_to_the_model():
    llm = ChatRagBias.from_model_id("tiny", device_map="cpu", max_tokens=2)
    assert llm.model_kwargs["device_map"] == "cpu"
    assert llm.lm.model.device.type == "cpu"
    assert llm.invoke("Hello").usage_metadata["output_tokens"] <= 2


def test_a_pipeline_of_transformers_is_taken_apart(lm):
    pipe = pipeline("text-generation", model=lm.model, tokenizer=lm.tokenizer, max_new_tokens=5, do_sample=False)
    llm = RagBiasPipeline(pipeline=pipe)
    assert llm.max_tokens == 5
    assert llm.invoke(QUESTION) == RagBiasPipeline(lm=lm, max_tokens=5).invoke(QUESTION)
    assert RagBiasPipeline(pipeline=pipe, max_tokens=3).max_tokens == 3
    with pytest.raises(ArgumentError, match="num_beams"):
        RagBiasPipeline(pipeline=pipeline("text-generation", model=lm.model, tokenizer=lm.tokenizer, num_beams=3))


def test_a_chat_model_may_wrap_a_completion_model(lm):
    inner = RagBiasPipeline(lm=lm, max_tokens=5, method="rotor")
    chat = ChatRagBias(llm=inner)
    assert (chat.lm, chat.max_tokens, chat.method) == (inner.lm, 5, "rotor")
    assert ChatRagBias(llm=inner, max_tokens=3).max_tokens == 3
    with pytest.raises(ArgumentError, match="RagBiasPipeline"):
        ChatRagBias(llm="tiny")


def test_habits_of_stock_calls_work(chat, completion):
    expected = completion.invoke(QUESTION, max_tokens=3)
    assert completion.invoke(QUESTION, pipeline_kwargs={"max_new_tokens": 3}) == expected
    assert completion.bind(skip_prompt=True, stop=["zzz"]).invoke(QUESTION, max_tokens=3) == expected
    with pytest.raises(ArgumentError, match="skip_prompt=False"):
        completion.invoke(QUESTION, skip_prompt=False)
    assert chat.invoke([HumanMessage("Hello")], max_new_tokens=2).usage_metadata["output_tokens"] <= 2


@pytest.mark.parametrize("kind", [ChatRagBias, RagBiasPipeline])
def test_parameters_of_a_server_are_options(kind, lm):
    llm = kind(lm=lm, timeout=60, max_retries=3, api_key="secret")
    assert (llm.options.timeout, llm.options.max_retries) == (60, 3)
    assert llm.options.api_key.get_secret_value() == "secret" and "secret" not in f"{llm!r} {llm.options!r}"


@pytest.mark.parametrize("kind", [ChatRagBias, RagBiasPipeline])
def test_without_a_model_the_error_shows_how_to_name_one(kind):
    with pytest.raises(ArgumentError, match=r'no model given; name one, e.g. model_id="Qwen/'):
        kind(max_tokens=8)


@pytest.mark.parametrize("kind", [ChatRagBias, RagBiasPipeline])
def test_a_class_has_at_most_15_own_fields_and_a_short_repr(kind):
    base = next(each for each in kind.__mro__ if each.__module__.startswith("langchain_core."))
    assert len(kind.model_fields.keys() - base.model_fields.keys()) <= 15
    assert repr(kind(model="tiny", method="none", top_p=0.5)) == f"{kind.__name__}(model_id='tiny', method='none')"


def test_a_repetition_penalty_changes_the_answer(chat):
    plain = chat.invoke("Hello", max_tokens=30).content
    assert chat.invoke("Hello", max_tokens=30, repetition_penalty=5.0).content != plain
    assert chat.invoke("Hello", max_tokens=30, repetition_penalty=1.0).content == plain


def test_a_configured_model_is_loaded(tmp_path):
    other = DebiasedLM.from_pretrained("tiny")
    torch.nn.init.zeros_(other.model.lm_head.weight)
    other.model.save_pretrained(tmp_path)
    other.tokenizer.save_pretrained(tmp_path)
    llm = ChatRagBias(model_id="tiny", max_tokens=4)
    chosen = llm.configurable_fields(
        model_id=ConfigurableField(id="model"), model_kwargs=ConfigurableField(id="kwargs")
    )
    plain = llm.invoke(QUESTION).content
    assert chosen.invoke(QUESTION).content == plain
    message = chosen.with_config(configurable={"model": str(tmp_path)}).invoke(QUESTION)
    assert message.response_metadata["model_name"] == str(tmp_path)
    assert message.content == ChatRagBias(model_id=str(tmp_path), max_tokens=4).invoke(QUESTION).content != plain
    halved = ChatRagBias(lm=llm.lm, model_id="tiny", model_kwargs={"dtype": "bfloat16"})
    assert (halved.lm.model.dtype, llm.lm.model.dtype) == (torch.bfloat16, torch.float32)
    assert ChatRagBias(lm=llm.lm, model_id="tiny").lm is llm.lm


def test_a_model_that_was_given_is_not_called_by_another_name():
    lm = DebiasedLM.from_pretrained("tiny")
    chosen = ChatRagBias(lm=lm).configurable_fields(model_id=ConfigurableField(id="model"))
    with pytest.raises(ArgumentError, match="model_id='other', but lm is 'tiny'"):
        chosen.with_config(configurable={"model": "other"}).invoke(QUESTION)
    with pytest.raises(ArgumentError, match="model_kwargs are for loading"):
        ChatRagBias(lm=lm, model_kwargs={"dtype": "bfloat16"})


def test_from_model_id_takes_stock_and_attention_backends():
    assert ChatRagBias.from_model_id("tiny", backend="torch").lm.backend == "torch"
    assert ChatRagBias.from_model_id("tiny", backend="pipeline").lm.backend == "auto"
    with pytest.raises(ArgumentError, match="expected one of 'auto', 'torch', 'triton', 'flash'"):
        ChatRagBias.from_model_id("tiny", backend="openvino")


@pytest.mark.parametrize("kind", [ChatRagBias, RagBiasPipeline])
def test_names_of_other_chat_models_are_understood(kind):
    llm = kind(model="tiny", temperature=0, max_tokens=None, dtype="bfloat16", device="cpu")
    assert (llm.model_id, llm.max_tokens, llm.lm.model.dtype) == ("tiny", 256, torch.bfloat16)
    own = kind(model_name="tiny", max_new_tokens=3, device="cpu", tokenizer=llm.lm.tokenizer)
    assert (own.max_tokens, own.lm.tokenizer) == (3, llm.lm.tokenizer)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"model": "tiny", "model_id": "other"}, "conflicts with"),
        ({"dtype": "auto", "model_kwargs": {"dtype": "auto"}}, "twice"),
        ({"model": "tiny", "device": "gpu"}, "device='gpu'"),
    ],
)
def test_names_that_say_two_things_are_refused(fields, text):
    with pytest.raises(ArgumentError, match=text):
        ChatRagBias(**fields)


def test_loading_arguments_are_refused_with_a_loaded_model(lm):
    with pytest.raises(ArgumentError, match="lm is loaded already"):
        ChatRagBias(lm=lm, dtype="auto")


def test_an_unknown_method_is_refused_before_weights_are_read(tmp_path):
    with pytest.raises(UnknownMethodError, match="did you mean 'pine'"):
        ChatRagBias(model=str(tmp_path), method="pin")


def test_a_gguf_file_is_loaded_by_its_folder_and_name(tmp_path, monkeypatch):
    monkeypatch.setenv("RAGBIAS_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "small.gguf", template="{{ messages[0].content }}")
    chat = ChatRagBias(model_id=str(tmp_path), gguf_file="small.gguf", max_tokens=3)
    completion = RagBiasPipeline(model_id=str(tmp_path / "small.gguf"), max_tokens=3)
    assert chat.invoke("ab cd").content == completion.invoke("ab cd")
