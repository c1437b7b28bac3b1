"""Profiles: saved, read, validated with file and field named, and turned into a method."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ragbias
from ragbias.errors import MethodError
from ragbias.methods import ChannelScaling, Profile, get
from ragbias.methods.profiles import find_profile, shipped_profiles

PROFILE = Profile("some/model", 64, 3, 7, -0.5, (1, 2), {"check": {"loss": 0.5}, "curve": list(range(200))})
METHOD = ChannelScaling(7, -0.5, layers=(1, 2))


def test_a_saved_profile_reads_as_it_was(tmp_path):
    replace(PROFILE, channel=np.int64(7)).save(tmp_path / "p.json")
    loaded = Profile.load(tmp_path / "p.json")
    assert loaded == PROFILE
    assert loaded.measured == PROFILE.measured
    assert [path.name for path in tmp_path.iterdir()] == ["p.json"]


WRONG = [
    ("model", "", "the model's name"), ("model", 7, "the model's name"), ("hidden_size", 0, "whole number >= 1"),
    ("n_layers", "3", "whole number >= 1"), ("channel", 64, "below hidden_size=64"),
    ("channel", -1, "whole number >= 0"), ("channel", True, "whole number >= 0"),
    ("factor", float("nan"), "number from -1,000,000 to 1,000,000"), ("factor", None, "number from -1,000,000"),
    ("layers", (2, 1), "first <= last"), ("layers", (1, 3), "< n_layers=3"),
    ("layers", (0, 1.5), "whole number >= 0"), ("layers", (-1, 1), "whole number >= 0"),
    ("layers", (0, 1, 2), "first, last"), ("layers", 1, "first, last"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "expected"), WRONG)
def test_a_wrong_value_is_refused_and_named(field, value, expected):
    with pytest.raises(MethodError, match=expected) as error:
        replace(PROFILE, **{field: value})
    assert str(error.value).startswith(f"{field}={value!r}")


@pytest.mark.parametrize(("field", "value", "expected"), [*WRONG, ("version", 2, "expected 1")])
def test_a_wrong_field_is_named_with_its_file(tmp_path, field, value, expected):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**PROFILE.as_dict(), field: value}))
    with pytest.raises(MethodError, match=expected) as error:
        ChannelScaling.from_profile(path)
    assert str(error.value).startswith(f"profile {path}: {field}=")
    assert "ragbias calibrate" in str(error.value)


@pytest.mark.parametrize("field", ["version", "model", "hidden_size", "n_layers", "channel", "factor", "layers"])
def test_a_missing_field_is_named_with_its_file(tmp_path, field):
    data = PROFILE.as_dict()
    del data[field]
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(data))
    with pytest.raises(MethodError, match=f"bad.json: field {field} is missing"):
        Profile.load(path)


@pytest.mark.parametrize("content", ["", "{", "[1]", "\x00", "[" * 100_000])
def test_a_file_that_is_no_profile_is_named(tmp_path, content):
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(MethodError, match="bad.json"):
        Profile.load(path)


def test_from_profile_takes_a_name_a_path_or_a_profile(tmp_path):
    path = tmp_path / "mine"  # a file needs no suffix
    PROFILE.save(path)
    PROFILE.save(tmp_path / "mine.json")
    for given in (PROFILE, path, str(path), tmp_path / "mine.json", str(tmp_path / "mine.json")):
        assert ChannelScaling.from_profile(given) == METHOD
    mistral = ChannelScaling(213, 0, layers=(10, 25))
    for name in ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b-instruct-v0.2", "/models/Mistral-7B-Instruct-v0.2/"):
        assert ChannelScaling.from_profile(name) == mistral
        assert hash(ChannelScaling.from_profile(name)) == hash(mistral)


def test_an_unknown_name_or_file_says_what_to_do(tmp_path):
    with pytest.raises(
        MethodError, match=r"no channel-scaling profile for 'no/model'; known: .*tiny.*ragbias calibrate"
    ):
        ChannelScaling.from_profile("no/model")
    for given, words in (
        ("missing.json", "cannot be read"),
        (Path("missing"), "cannot be read"),
        (tmp_path, "cannot be read: .*Is a directory"),
    ):
        with pytest.raises(MethodError, match=words):
            ChannelScaling.from_profile(given)


def test_a_profile_of_another_shape_is_refused_when_attached(llama):
    size, depth = llama.config.hidden_size, llama.config.num_hidden_layers
    with ragbias.debias(llama, ChannelScaling.from_profile(Profile("m", size, depth, 7, 0.0, (1, 2)))):
        pass
    for profile in (Profile("m", 2 * size, depth, 7, 0.0, (1, 2)), Profile("m", size, depth + 1, 7, 0.0, (1, 2))):
        shapes = (
            f"hidden size {profile.hidden_size} with {profile.n_layers} layers, but this one has hidden size {size}"
        )
        with (
            pytest.raises(MethodError, match=f"for a model of {shapes} and {depth} layers"),
            ragbias.debias(llama, ChannelScaling.from_profile(profile)),
        ):
            pass


def test_all_shipped_profiles_are_valid_and_the_papers():
    found = {
        name: (p.hidden_size, p.channel, p.factor, p.layers) for name, p in shipped_profiles().items() if not p.measured
    }
    assert found == {
        "meta-llama/Llama-2-7b-chat-hf": (4096, 2393, -1, (10, 25)),
        "meta-llama/Llama-2-13b-chat-hf": (5120, 4283, -1, (10, 34)),
        "lmsys/vicuna-7b-v1.5-16k": (4096, 2393, 0, (10, 25)),
        "lmsys/vicuna-13b-v1.5-16k": (5120, 4923, 0, (10, 34)),
        "mistralai/Mistral-7B-Instruct-v0.2": (4096, 213, 0, (10, 25)),
        "google/gemma-1.1-7b-it": (3072, 1665, 0, (10, 22)),
        "Qwen/Qwen1.5-7B-Chat": (4096, 1081, 0.2, (10, 25)),
        "mosaicml/mpt-30b-chat": (7168, 6926, 0, (10, 42)),
    }


def test_the_profile_of_tiny_was_measured_and_fits_the_model():
    lm = ragbias.DebiasedLM.from_pretrained("tiny", method="channel-scaling")
    with ragbias.debias(lm.model, lm.method):
        pass


@pytest.mark.parametrize("name", ["tiny", "smollm2", "gemma3-270m"])
def test_our_profiles_say_what_was_measured(name):
    measured = shipped_profiles()[name].measured
    assert {"check", "choice", "losses", "layer_search", "channel_search", "curve", "settings"} <= measured.keys()
    check = measured["check"]
    assert measured["beats_plain"] == (check["difference"] < -2 * check["standard_error"])


def test_a_file_of_a_model_is_not_read_as_its_profile(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF\xff")
    with pytest.raises(MethodError, match="no channel-scaling profile for .*model.gguf"):
        get("channel-scaling", str(file))


def test_a_model_alias_and_its_hub_name_share_a_profile():
    assert (
        find_profile("smollm2") == find_profile("HuggingFaceTB/SmolLM2-135M-Instruct") == shipped_profiles()["smollm2"]
    )
