"""Generation arguments: their declared types, and validation at the call."""

import numpy as np
import pytest
from transformers import GenerationConfig

from ragbias import DebiasedLM
from ragbias.display import shown
from ragbias.errors import ArgumentError
from ragbias.generation import GenerationArguments, allow_only, arguments
from ragbias.generation.arguments import DecodingArguments, GenerationSettings
from ragbias.methods import PermutationVote
from support.prompts import PROMPT
from support.random_models import random_model
from support.type_checking import type_errors

TYPED_CALL = """
from typing_extensions import Unpack
from ragbias.generation.arguments import GenerationArguments
def generate(prompt: str, **settings: Unpack[GenerationArguments]) -> None: ...
generate("x", temperature=0.5, top_k=3, stop=["y"], stop_token_ids=[2], logprobs=True, max_new_tokens=8, seed=None)
generate("x", temprature=0.5)
generate("x", top_k=2.5)
generate("x", prefix_allowed_tokens_fn=lambda index, ids: [1], watermarking_config={"bias": 2.0})
"""


WRONG = [
    {"temperature": -1}, {"temperature": float("nan")}, {"top_p": 0.0, "temperature": 1},
    {"top_k": 0, "temperature": 1}, {"max_new_tokens": 0}, {"stop": [""]}, {"eos_token_id": 5}, {"num_beams": 2},
    {"max_new_tokens": 2.5}, {"temperature": "0.5"}, {"top_k": 2.5, "temperature": 1}, {"stop": [1]}, {"stop": 1},
    {"seed": 1.5}, {"logprobs": "yes"}, {"repetition_penalty": 0}, {"min_new_tokens": "a"},
    {"prefix_allowed_tokens_fn": 3}, {"watermarking_config": 3}, {"exponential_decay_length_penalty": 3},
    {"is_assistant": True}, {"dola_layers": "low"}, {"penalty_alpha": 0.5}, {"constraints": [1]},
    {"force_words_ids": [[1]]}, {"token_healing": True},
    {"assistant_early_exit": 1}, {"use_mtp": True}, {"temprature": 0.5}, {"stop_sequences": ["x"]},
    {"max_time": "x"}, {"max_time": 0}, {"no_repeat_ngram_size": 1.5}, {"bad_words_ids": []},
    {"bad_words_ids": [5]}, {"suppress_tokens": 5}, {"begin_suppress_tokens": ["x"]}, {"sequence_bias": {"x": 1.0}},
    {"stop_token_ids": "x"}, {"keep_special": 5}, {"keep_special": "a"}, {"sequence_bias": [[1, 2, 3]]},
    {"sequence_bias": {(1,): "x"}}, {"stop_token_ids": [-1]}, {"temperature": 10**400},
    {"repetition_penalty": 10**400}, {"exponential_decay_length_penalty": (1, 10**400)},
    {"sequence_bias": {(1,): -(10**400)}}, {"sequence_bias": {(1,): float("inf")}}, {"suppress_tokens": [10**400]},
    {"bad_words_ids": [[2**63]]}, {"top_p": 10**5000}, {"min_new_tokens": 10**5000},
    {"watermarking_config": {"strength": 2.0}}, {"watermarking_config": {"seeding_scheme": "x"}},
    {"watermarking_config": {"greenlist_ratio": "x"}}, {"bad_words_ids": [[5], [7, 2**62]]},
    {"sequence_bias": {(2**62,): 1.0}},
]  # fmt: skip


@pytest.mark.parametrize("settings", WRONG, ids=shown)
def test_settings_out_of_range_are_refused_at_once(lm, settings):
    (name, *_) = settings
    words = "stop string" if name == "stop" else name
    with pytest.raises(ArgumentError, match=words):
        lm.generate(PROMPT, **settings)
    with pytest.raises(ArgumentError, match=words):
        lm.stream(PROMPT, **settings)


def test_a_type_checker_refuses_bad_argument_names_and_types(tmp_path):
    assert type_errors(tmp_path, TYPED_CALL, "ragbias/generation/arguments.py") == ["6: call-arg", "7: arg-type"]


def test_declared_arguments_are_taken_and_checked_ones_declared():
    declared = GenerationArguments.__annotations__.keys()
    assert not declared & arguments.RESERVED
    assert arguments.CHECKS.keys() - {"max_tokens"} <= declared
    own = {"seed", "stop", "prefix_allowed_tokens_fn"}
    assert DecodingArguments.__annotations__.keys() - own <= GenerationConfig().to_dict().keys()


TAKEN = [
    ("max_time", 1e-4), ("no_repeat_ngram_size", 1), ("bad_words_ids", [[200]]), ("suppress_tokens", [200]),
    ("begin_suppress_tokens", [200]), ("sequence_bias", {(200,): -5.0}), ("sequence_bias", [([200], -5.0)]),
    ("sequence_bias", {(200,): -5}), ("repetition_penalty", 2), ("repetition_penalty", np.float32(1.5)),
    ("exponential_decay_length_penalty", (2, 1.5)), ("min_new_tokens", 4),
    ("prefix_allowed_tokens_fn", lambda index, ids: [200]), ("watermarking_config", {"bias": 2.0}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), TAKEN)
def test_what_transformers_takes_reaches_it(lm, name, value):
    assert name in DecodingArguments.__annotations__
    assert len(lm.generate(PROMPT, max_new_tokens=4, **{name: value}).token_ids) <= 4


def test_a_batch_generates_only_allowed_texts_of_any_length(lm):
    texts = ["a", "b b b b"]
    prompts = [f"Question {number}:" for number in range(8)]
    only = allow_only(texts, lm.tokenizer)
    answers = lm.batch(prompts, method="none", prefix_allowed_tokens_fn=only, temperature=50.0)
    assert {answer.text for answer in answers} <= {*texts}


def test_ids_above_the_vocabulary_are_refused_by_every_method(lm):
    most = lm.model.config.vocab_size
    for method in ("none", "pine"):
        with pytest.raises(ArgumentError, match=rf"bad_words_ids=\[\[{most}\]\]; expected token ids below {most}"):
            lm.generate(PROMPT, method=method, bad_words_ids=[[most]])
        lm.generate(PROMPT, method=method, bad_words_ids=[[most - 1]], max_new_tokens=1)


def test_none_counts_as_not_given(lm):
    expected = lm.generate(PROMPT, max_new_tokens=4)
    given = dict.fromkeys(("stop_token_ids", "keep_special", "stop", "temperature", "seed", "do_sample"))
    assert lm.generate(PROMPT, max_new_tokens=4, **given) == expected
    assert "".join(lm.stream(PROMPT, max_new_tokens=4, **given)) == expected.text
    assert lm.generate(PROMPT, max_new_tokens=None).token_ids[:4] == expected.token_ids


def test_numpys_whole_numbers_are_as_good_as_pythons(lm):
    given = {"max_new_tokens": 4, "seed": 3, "temperature": 0.7, "method": "permutation-vote(samples=2,seed=1)"}
    voting = PermutationVote(samples=np.int64(2), seed=np.int64(1))
    numpys = {**given, "max_new_tokens": np.int64(4), "seed": np.int64(3), "method": voting}
    (answer,) = lm.batch([PROMPT], batch_size=np.int64(2), **numpys)
    assert answer.token_ids == lm.generate(PROMPT, **given).token_ids
    with pytest.raises(ArgumentError, match=r"batch_size=True; expected a whole number >= 1"):
        lm.batch([PROMPT], batch_size=True)


def test_an_unknown_name_is_reported_with_the_nearest_one(lm):
    with pytest.raises(ArgumentError, match="unknown argument 'temprature'; did you mean 'temperature'?"):
        lm.generate(PROMPT, temprature=0.5)


def test_settings_map_framework_names_and_return_arguments():
    given = {"max_tokens": 3, "stop": "x", "stop_token_ids": np.array([5]), "do_sample": True, "min_new_tokens": 2}
    settings = GenerationSettings.from_arguments({**given, "seed": None})
    assert (settings.max_new_tokens, settings.stop, settings.stop_token_ids) == (3, ("x",), (5,))
    assert (settings.temperature, settings.extra) == (1.0, {"min_new_tokens": 2})
    assert GenerationSettings.from_arguments(settings.arguments()) == settings
    assert GenerationSettings.from_arguments({}).arguments() == {"max_new_tokens": 256}
    assert GenerationSettings.from_arguments({"temperature": 2, "do_sample": False}).temperature is None
    with pytest.raises(ArgumentError, match="max_tokens and max_new_tokens are the same argument; pass one of them"):
        GenerationSettings.from_arguments({"max_tokens": 3, "max_new_tokens": 3})
    with pytest.raises(ArgumentError, match=r"max_tokens=0; expected a whole number >= 1"):
        GenerationSettings.from_arguments({"max_tokens": 0})


@pytest.mark.parametrize("wrong", [5, None, b"x", [1]])
def test_a_continuation_is_text(lm, wrong):
    with pytest.raises(ArgumentError, match="expected a string"):
        lm.score(PROMPT, wrong)


def test_invariant_methods_refuse_sequences_across_documents(lm):
    for name in ("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"):
        for method in ("pine", "rotor", "pcw", "pced", "mixture"):
            with pytest.raises(ArgumentError, match=f"{name}=2 with {method}.*repetition_penalty"):
                lm.generate(PROMPT, method=method, **{name: 2})
        with pytest.raises(ArgumentError, match=f"{name}=2"):
            lm.stream(PROMPT, **{name: 2})
    for method in ("none", "nia", "canonical-order", "permutation-vote"):
        lm.generate(PROMPT, method=method, no_repeat_ngram_size=2, max_new_tokens=2)
    lm.generate("No documents.", no_repeat_ngram_size=2, max_new_tokens=2)  # which runs plain
    suffix = len(lm.prepare(PROMPT).tokens.suffix)
    long = list(range(5, suffix + 7))
    for settings in ({"bad_words_ids": [[5], long]}, {"sequence_bias": [([5], 1.0), (long, 1.0)]}):
        with pytest.raises(ArgumentError, match="pass shorter sequences"):
            lm.generate(PROMPT, **settings)
    lm.generate(PROMPT, bad_words_ids=[[5], long[:-1]], max_new_tokens=2)
    lm.generate(PROMPT, sequence_bias={(5,): 1.0, tuple(long[:-1]): 1.0}, max_new_tokens=2)


def test_what_is_allowed_gives_one_answer_in_every_order(lm):
    settings = {"repetition_penalty": 1.7, "bad_words_ids": [[70, 71]], "max_new_tokens": 12}
    answers = {lm.generate(PROMPT.reordered(order), **settings).text for order in ([0, 1, 2, 3], [3, 1, 0, 2])}
    assert len(answers) == 1


def test_defaults_of_the_model_are_checked_like_arguments(byte_tokenizer):
    lm = DebiasedLM(random_model("llama"), byte_tokenizer, method="pine")
    expected = lm.generate(PROMPT, max_new_tokens=4).token_ids
    lm.model.generation_config.no_repeat_ngram_size = 2
    with pytest.raises(ArgumentError, match="no_repeat_ngram_size=2 with pine: .*pass no_repeat_ngram_size=0"):
        lm.generate(PROMPT, max_new_tokens=4)
    assert lm.generate(PROMPT, max_new_tokens=4, no_repeat_ngram_size=0).token_ids == expected
    lm.model.generation_config.no_repeat_ngram_size = None
    vars(lm.model.generation_config).update(
        return_dict_in_generate=True, output_scores=True, num_return_sequences=2, cache_implementation="hybrid"
    )
    assert lm.generate(PROMPT, max_new_tokens=4).token_ids == expected
    for name, value in {"stop_strings": ["a"], "cache_implementation": "static", "guidance_scale": 2.0}.items():
        setattr(lm.model.generation_config, name, value)
        with pytest.raises(ArgumentError, match=rf"generation_config.{name}=.* is not supported; set it to None"):
            lm.generate(PROMPT, max_new_tokens=4)
        setattr(lm.model.generation_config, name, None)
