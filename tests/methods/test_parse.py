"""Parsing of method names with parameters."""

import pytest

from ragbias.errors import MethodError, UnknownMethodError
from ragbias.methods import (
    METHODS,
    SIW,
    AttentionSorting,
    ChannelScaling,
    Compose,
    LongContextReorder,
    NoMethod,
    Pine,
    Profile,
    RoToR,
    SelfExtend,
    format_method,
    get,
    parse_methods,
)


def test_a_list_gives_labels_as_typed_and_the_methods_they_mean():
    text = "none, pine(layers=(1, None)),attention-sorting(rounds=2),long-context-reorder( style = haystack )"
    assert parse_methods(text) == {
        "none": NoMethod(),
        "pine(layers=(1,None))": Pine(layers=(1, None)),
        "attention-sorting(rounds=2)": AttentionSorting(2),
        "long-context-reorder(style=haystack)": LongContextReorder("haystack"),
    }
    assert parse_methods("pine()") == {"pine()": Pine()}
    assert parse_methods('long-context-reorder(style="haystack")').popitem()[1] == LongContextReorder("haystack")


def test_channel_scaling_takes_a_profile_or_all_parameters():
    assert parse_methods("channel-scaling", "tiny") == {"channel-scaling": ChannelScaling.from_profile("tiny")}
    typed = "channel-scaling(channel=3,factor=0.5,layers=None)"
    assert parse_methods(typed) == {typed: ChannelScaling(3, 0.5, None)}
    with pytest.raises(MethodError, match="no channel-scaling profile"):
        parse_methods("channel-scaling", "of-nobody")
    with pytest.raises(MethodError, match="channel missing"):
        parse_methods("channel-scaling(factor=0.5)", "tiny")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "nothing before or after"),
        ("none,,pine", "nothing before or after"),
        ("pine(order=none", "brackets do not match"),
        ("pine)", "brackets do not match"),
        ("pine(order=none)x", "expected a name"),
        ("pine(none)", "expected parameter=value"),
        ("pine(order=)", "expected parameter=value"),
        ("pine(strength=2)", "unknown parameter 'strength'; parameters of 'pine': order, layers"),
        ("none(x=1)", "unknown parameter 'x'; parameters of 'none': reader"),
        ("pine(order=none,order=reverse)", "given twice"),
        ("pine(order=sideways)", "expected one of"),
        ("attention-sorting(rounds=__import__('os'))", "neither a Python literal nor a word"),
        ("none,pine,none", "same as 'none'"),
        ("pine,pine()", "same as 'pine'"),
        ("siw+", "nothing before or after '\\+'"),
        ("siw+pine", "expected SIW with ChannelScaling"),
        ("channel-scaling(profile=p.json,factor=2)", "a profile sets channel, factor and layers"),
        ("channel-scaling(profile=no/such.json)", "cannot be read"),
        ("channel-scaling(profile='')", "no channel-scaling profile for ''"),
        ("channel-scaling(profile=/a b.json)", "'/a b.json' is neither a Python literal nor a word"),
        ("pine(order=re verse)", "'re verse' is neither a Python literal nor a word"),
        ("pine(order=')')", "order='\\)'; expected one of"),
        ("pine(order=')", "brackets do not match|neither a Python literal"),
        ("siw(sigma={[]:1})", "neither a Python literal nor a word"),
        (f"siw(sigma={'-' * 100_000}1)", "neither a Python literal nor a word"),
    ],
)
def test_what_is_no_such_list_is_refused(text, complaint):
    with pytest.raises(MethodError, match=complaint):
        parse_methods(text)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UnknownMethodError, match=r"did you mean 'pine'\? known methods: none, segmented, pine"):
        parse_methods("none,pien")


def test_a_profile_is_a_file_or_a_models_name(tmp_path):
    path = tmp_path / "my profiles" / "p.json"
    path.parent.mkdir()
    Profile("mine", hidden_size=8, n_layers=4, channel=3, factor=0.5, layers=(1, 2)).save(path)
    found = get(f"channel-scaling(profile='{path}', last=all)", "of-nobody")
    assert found == ChannelScaling(3, 0.5, (1, 2), last="all")
    with pytest.raises(MethodError, match="hidden size 8 with 4 layers"):
        found.validate(hidden_size=16, n_layers=4)
    assert get("channel-scaling(profile=tiny)") == ChannelScaling.from_profile("tiny")
    assert get("channel-scaling(last=2)", "tiny") == ChannelScaling.from_profile("tiny", last=2)


@pytest.mark.parametrize("name", ["a,b.json", "a+b.json", "a(b.json", "a]=b.json", "a  b.json", "it's.json", "ä.json"])
def test_a_string_in_quotes_may_hold_any_character(tmp_path, name):
    Profile("mine", hidden_size=8, n_layers=4, channel=3, factor=0.5, layers=(1, 2)).save(tmp_path / name)
    typed = f"channel-scaling(profile={str(tmp_path / name)!r})"
    assert get(typed) == ChannelScaling(3, 0.5, (1, 2))
    assert list(parse_methods(f" none , {typed} ,siw + {typed}")) == ["none", typed, f"siw+{typed}"]


def test_blanks_inside_a_name_are_no_other_name():
    with pytest.raises(UnknownMethodError, match="unknown method 'pi ne'"):
        get("pi ne")


def test_two_methods_that_a_paper_combines_are_joined_by_a_plus():
    assert get("siw+self-extend") == Compose(SIW(), SelfExtend())
    assert get("self-extend(group=2, window=8) + siw(sigma=2)") == Compose(SIW(sigma=2), SelfExtend(2, 8))
    profile = "siw+channel-scaling(profile=tiny)"
    assert parse_methods(f"{profile},none") == {
        profile: Compose(SIW(), ChannelScaling.from_profile("tiny")),
        "none": NoMethod(),
    }
    assert get("siw+channel-scaling", "tiny") == get(profile)


def test_an_instance_is_returned_and_anything_else_is_refused():
    method = Pine()
    assert get(method) is method
    with pytest.raises(
        UnknownMethodError, match=r"Pine'>; expected a name such as 'pine', or an instance such as Pine\(\)"
    ):
        get(Pine)
    with pytest.raises(UnknownMethodError, match="method=3; expected a name"):
        get(3)
    with pytest.raises(UnknownMethodError, match="unknown method ''"):
        get("")


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_can_be_written_as_the_text_it_is_made_of(name):
    method = get(name, "tiny")
    assert get(format_method(method)) == method


def test_parameters_are_written_and_objects_are_refused():
    assert format_method(get("siw+self-extend")).startswith("siw(dense=0.9,")
    with pytest.raises(MethodError, match="cannot be written as text"):
        format_method(RoToR(key=len))
