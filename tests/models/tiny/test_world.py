"""The synthetic world: held-out names, and properties of a corpus."""

import random
from importlib.util import find_spec
from pathlib import Path

import pytest

from ragbias.errors import ArgumentError
from ragbias.models.tiny import world
from training.batches import BatchSettings, make_questions
from training.tokenizer import build_tokenizer


def _trained(count: int) -> set[world.Fact]:
    """Draw at least this many facts as in training."""
    rng = random.Random(0)
    drawn: set[world.Fact] = set()
    while len(drawn) < count:
        drawn.update(fact for entry in world.sample_entries(rng, 20, held_out=False) for fact in entry.facts)
    return drawn


def test_training_and_evaluation_share_no_name_and_no_fact():
    trained = _trained(20_000)
    corpora = [world.held_out_corpus(300, seed) for seed in range(5)]
    all_facts = {fact for corpus in corpora for passage in corpus for fact in world.facts(passage)}
    assert len(all_facts) > 2000
    assert not trained & all_facts
    assert not {fact.name for fact in trained} & {fact.name for fact in all_facts}


def test_training_batches_contain_no_held_out_name():
    tokenizer = build_tokenizer()
    held_out = {passage.title for seed in range(5) for passage in world.held_out_corpus(400, seed)}
    batch = make_questions(random.Random(3), tokenizer, BatchSettings(documents=20, ends=True), count=8)
    text = "\n".join(tokenizer.batch_decode(batch.ids))
    assert sum(name in text for name in _names(held_out=False)) >= 100
    assert not [name for name in held_out if name in text]


def _names(held_out: bool) -> set[str]:
    rng = random.Random(0)
    return {e.passage.title for _ in range(200) for e in world.sample_entries(rng, 40, held_out)}


def test_facts_read_from_a_passage_are_those_it_was_made_from():
    rng = random.Random(7)
    for entry in world.sample_entries(rng, 300, held_out=True):
        assert world.facts(entry.passage) == sorted(entry.facts)


def test_a_corpus_has_unique_names_and_only_answerable_passages():
    corpus = world.held_out_corpus(400, seed=1)
    assert len({passage.title for passage in corpus}) == 400
    assert all(world.facts(passage) for passage in corpus)
    assert world.held_out_corpus(400, seed=1) == corpus


def test_questions_have_one_answer_in_the_corpus():
    corpus = world.held_out_corpus(100, seed=2)
    for question in world.held_out_questions(corpus, 100, seed=0):
        assert question.gold in corpus
        assert question.answer in question.gold.text
        assert sum(question.gold.title in passage.text for passage in corpus) == 1
        assert question.gold.title in question.question


def test_asking_for_too_much_says_what_there_is():
    with pytest.raises(ArgumentError, match="10000 passages"):
        world.held_out_corpus(10_000, seed=0)
    with pytest.raises(ArgumentError, match="1000 questions"):
        world.held_out_questions(world.held_out_corpus(10, seed=0), 1000, seed=0)


def test_the_path_is_known_without_importing_torch():
    names = {"ragbias.models.tiny", "ragbias.models.tiny.world"}
    for name in names:
        source = Path(find_spec(name).origin).read_text()
        assert "import torch" not in source
        assert "transformers" not in source
