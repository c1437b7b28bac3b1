"""The tokenizer: a passage has the same ids at every position, and any text round-trips."""

import random
from itertools import chain

import pytest
from transformers import AutoTokenizer

from ragbias.models import tiny
from ragbias.models.tiny.world import WORDS, held_out_corpus
from training import formats
from training.tokenizer import build_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


def test_a_passage_has_the_same_ids_alone_and_joined(tokenizer):
    rng = random.Random(0)
    passages = held_out_corpus(5, seed=0)
    for _ in range(60):
        layout = formats.sample_format(rng)
        documents = layout.documents(passages)
        parts = [layout.prefix, *documents, layout.suffix.format(q="Where is Falcon Station?")]
        segments = tokenizer(parts, add_special_tokens=False).input_ids
        whole = tokenizer("".join(parts), add_special_tokens=False).input_ids
        assert whole == list(chain(*segments))


@pytest.mark.parametrize("separator", ["\n", "\n\n"])
def test_rotating_passages_rotates_their_ids(tokenizer, separator):
    texts = [formats.format_titled(0, passage) for passage in held_out_corpus(6, seed=1)]
    alone = tokenizer(texts, add_special_tokens=False).input_ids
    between = tokenizer(separator, add_special_tokens=False).input_ids
    for shift in range(6):
        turned = texts[shift:] + texts[:shift]
        expected = alone[shift:] + alone[:shift]
        joined = tokenizer(separator.join(turned), add_special_tokens=False).input_ids
        assert joined == list(chain(*(between + ids for ids in expected)))[len(between) :]


def test_every_word_of_the_world_is_one_token(tokenizer):
    for word in (word for name in ("NAME_WORDS", "KINDS", "CODE_WORDS", "TOWNS", "CRAFTS") for word in WORDS[name]):
        assert len(tokenizer(f"{word} {word}", add_special_tokens=False).input_ids) == 2


@pytest.mark.parametrize("text", ["naïve Übergröße — 漢字 🙂", "x = {'a': [1, 2]}\n\n\n  y", " outer spaces  ", ""])
def test_any_text_survives(tokenizer, text):
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


def test_the_chat_template_takes_the_usual_roles(tokenizer):
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A"},
        {"role": "tool", "content": "T"},
        {"role": "user", "content": [{"type": "text", "text": "V"}]},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<s><|system|>\nS\n<|user|>\nU\n<|assistant|>\nA</s>\n<|user|>\nT\n<|user|>\nV\n<|assistant|>\n"


def test_the_shipped_tokenizer_is_the_one_that_the_code_builds(tokenizer):
    shipped = AutoTokenizer.from_pretrained(tiny.path())
    assert shipped.get_vocab() == tokenizer.get_vocab()
    assert shipped.chat_template == tokenizer.chat_template
    assert (shipped.bos_token, shipped.eos_token, shipped.pad_token) == ("<s>", "</s>", "<pad>")
