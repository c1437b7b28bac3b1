"""Arguments of a generation are checked when it is asked for."""

import pytest

from ragbias.errors import ArgumentError
from support.prompts import PROMPT


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_p": 0.0, "temperature": 1},
        {"top_k": 0, "temperature": 1},
        {"max_new_tokens": 0},
        {"stop": [""]},
        {"eos_token_id": 5},
        {"num_beams": 2},
        {"max_new_tokens": 2.5},
        {"temperature": "0.5"},
        {"top_k": 2.5, "temperature": 1},
        {"stop": [1]},
        {"stop": 1},
        {"seed": 1.5},
        {"logprobs": "yes"},
        {"repetition_penalty": 0},
        {"min_new_tokens": "a"},
        {"prefix_allowed_tokens_fn": 3},
        {"watermarking_config": 3},
        {"exponential_decay_length_penalty": 3},
        {"is_assistant": True},
        {"dola_layers": "low"},
        {"penalty_alpha": 0.5},
        {"constraints": [1]},
        {"force_words_ids": [[1]]},
        {"token_healing": True},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused_at_once(lm, settings):
    with pytest.raises(ArgumentError, match=next(iter(settings)).replace("stop", "stop string")):
        lm.generate(PROMPT, **settings)
    with pytest.raises(ArgumentError):
        lm.stream(PROMPT, **settings)
