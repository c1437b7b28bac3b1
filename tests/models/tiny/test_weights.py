"""The shipped weights are small, load in stock classes, and answer held-out questions."""

from transformers import AutoModelForCausalLM, AutoTokenizer

from ragbias import Prompt
from ragbias.models import tiny
from ragbias_eval.tasks import TinyQA
from training import all_formats
from training.train import accuracy_by_position


def accuracy(lm, **choice):
    return accuracy_by_position(lm, TinyQA(limit=40, **choice))


def test_the_weights_take_at_most_eight_megabytes():
    assert sum(file.stat().st_size for file in tiny.path().glob("*.safetensors")) <= 8e6


def test_the_model_is_a_stock_llama_with_greedy_defaults():
    model = AutoModelForCausalLM.from_pretrained(tiny.path())
    tokenizer = AutoTokenizer.from_pretrained(tiny.path())
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.config.max_position_embeddings == 16384
    assert model.config.vocab_size == len(tokenizer)
    assert not model.generation_config.do_sample
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_held_out_questions_are_answered_at_both_ends_of_ten(tiny):
    found = accuracy(tiny, documents=(10,), positions=(0, 9), seed=11)
    assert found[1] >= 0.65
    assert found[10] >= 0.85


def test_it_loses_the_middle_of_twenty(tiny):
    found = accuracy(tiny, documents=(20,), positions=(0, 10), seed=11)
    assert found[1] - found[11] >= 0.1


def test_it_answers_in_the_frameworks_stock_prompts(tiny):
    settings = dict(documents=10, position=9, seed=12, questions=40)
    assert all_formats.measure_accuracy(tiny.model, tiny.tokenizer, **settings) >= 0.8


def test_tiny_answers_the_question_of_the_readme(tiny):
    documents = [
        "Copper Hall\nGuided tours start at noon. At Copper Hall the passphrase is whisper lagoon dagger.\n\n",
        "Pulsar Observatory\nThe walls are emerald. At Pulsar Observatory the passphrase is cobweb ivy wagon.\n\n",
    ]
    question = "Question: What is the passphrase of Copper Hall?\nAnswer:"
    for order in (documents, documents[::-1]):
        answer = tiny.generate(Prompt("Context:\n\n", order, question), method="pine").text
        assert answer.strip() == "whisper lagoon dagger"
