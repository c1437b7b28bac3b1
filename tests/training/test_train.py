"""Training runs end to end, and its parts work as documented."""

import json
import random
from collections import Counter

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from training import batches
from training.model import initialise_model, make_config
from training.tokenizer import build_tokenizer
from training.train import TrainingSettings, find_exact_matches, learning_rate_factor, train


def test_a_few_steps_write_a_model_that_loads(tmp_path):
    settings = TrainingSettings(steps=3, copying=((8, 0), (9, 1)), copy_accuracy=-1.0, batch_tokens=512)
    train(settings, tmp_path)
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["settings"]["steps"] == 3
    assert record["tokens"] > 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert model.generate(**tokenizer("Hello", return_tensors="pt"), max_new_tokens=2).shape[1] <= 8


def test_ends_training_puts_90_percent_of_answers_near_the_ends():
    rng = random.Random(0)
    drawn = Counter(batches._choose_gold(rng, batches.BatchSettings(20, ends=True)) for _ in range(10_000))
    assert 0.90 <= sum(drawn[position] for position in (0, 1, 18, 19)) / 10_000 <= 0.94
    assert abs(drawn[0] + drawn[1] - drawn[18] - drawn[19]) < 400


def test_uniform_training_prefers_no_position():
    rng = random.Random(0)
    drawn = Counter(batches._choose_gold(rng, batches.BatchSettings(20, ends=False)) for _ in range(10_000))
    assert max(drawn.values()) < 600


def test_a_question_sees_passages_and_itself_but_no_others():
    batch = batches.make_questions(random.Random(0), build_tokenizer(), batches.BatchSettings(4, ends=True), count=1)
    visible, answer = batch.visible[0, 0], batch.answer[0]
    first, second = (answer == 0).nonzero()[0, 0], (answer == 1).nonzero()[0, 0]
    assert visible[first, 0]
    assert visible[second, 0]
    assert not visible[second, first]


def test_look_back_heads_start_at_one_to_four_tokens_back():
    tokenizer = build_tokenizer()
    model = initialise_model(make_config(tokenizer), seed=0)
    model.set_attn_implementation("eager")
    ids = torch.randint(6, len(tokenizer), (1, 60), generator=torch.Generator().manual_seed(0))
    weights = model(ids, output_attentions=True).attentions[0][0, :, 10:].mean(1)
    assert weights.shape == (4, 60)
    for head in range(4):
        full = model(ids, output_attentions=True).attentions[0][0, head]
        back = torch.stack([full.diagonal(-offset)[10:50].mean() for offset in range(8)])
        assert back.argmax().item() == head + 1


def test_an_answer_is_right_only_if_all_its_tokens_are():
    logits = torch.eye(3)
    found = find_exact_matches(logits, torch.tensor([0, 1, 0]), torch.tensor([4, 7, 7]))
    assert found.tolist() == [1.0, 0.0]


def test_the_learning_rate_is_constant_until_half_time():
    assert [learning_rate_factor(step, 100) for step in (0, 49)] == [1.0, 1.0]
    assert learning_rate_factor(99, 100) < 0.08
