"""The shipped weights: small, loadable by stock classes, and able to answer held-out questions."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ragbias import DebiasedLM, Prompt
from ragbias.models import tiny
from training.evaluate import by_position


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(tiny.path(), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(tiny.path())


def test_the_weights_take_at_most_eight_megabytes() -> None:
    assert sum(file.stat().st_size for file in tiny.path().glob("*.safetensors")) <= 8e6


def test_the_model_is_a_stock_llama_with_a_long_window_and_greedy_defaults(model, tokenizer) -> None:
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.config.max_position_embeddings == 16384
    assert model.config.vocab_size == len(tokenizer)
    assert not model.generation_config.do_sample
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_it_answers_held_out_questions_with_the_answer_first_or_last_of_ten(model, tokenizer) -> None:
    found = by_position(model, tokenizer, documents=10, seed=11, count=40, places=[0, 9])
    assert found[1] >= 0.65
    assert found[10] >= 0.85


def test_it_loses_the_middle_of_twenty(model, tokenizer) -> None:
    found = by_position(model, tokenizer, documents=20, seed=11, count=40, places=[0, 10])
    assert found[1] - found[11] >= 0.1


def test_it_answers_in_the_frameworks_stock_prompts(model, tokenizer) -> None:
    found = by_position(model, tokenizer, documents=10, seed=12, count=40, places=[9], layout=None)
    assert found[10] >= 0.8


def test_tiny_answers_the_question_of_the_readme():
    lm = DebiasedLM.from_pretrained("tiny")
    documents = [
        "Copper Hall\nGuided tours start at noon. At Copper Hall the passphrase is whisper lagoon dagger.\n\n",
        "Pulsar Observatory\nThe walls are emerald. At Pulsar Observatory the passphrase is cobweb ivy wagon.\n\n",
    ]
    question = "Question: What is the passphrase of Copper Hall?\nAnswer:"
    for order in (documents, documents[::-1]):
        assert lm.generate(Prompt("Context:\n\n", order, question)).text.strip() == "whisper lagoon dagger"
