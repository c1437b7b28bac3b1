"""Methods as typed."""

import pytest

from ragbias.errors import MethodError, UnknownMethodError
from ragbias.methods import AttentionSorting, ChannelScaling, LongContextReorder, NoMethod, Pine
from ragbias.methods.parse import parse_methods


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


def test_channel_scaling_takes_the_models_profile_or_all_of_its_parameters():
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
        ("none(x=1)", "unknown parameter 'x'; parameters of 'none': none"),
        ("pine(order=none,order=reverse)", "given twice"),
        ("pine(order=sideways)", "expected one of"),
        ("attention-sorting(rounds=__import__('os'))", "neither a Python literal nor a word"),
        ("none,pine,none", "same as 'none'"),
        ("pine,pine()", "same as 'pine'"),
    ],
)
def test_what_is_no_such_list_is_refused(text, complaint):
    with pytest.raises(MethodError, match=complaint):
        parse_methods(text)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UnknownMethodError, match=r"did you mean 'pine'\? known methods: none, pine"):
        parse_methods("none,pien")
