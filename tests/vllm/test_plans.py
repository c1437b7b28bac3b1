"""Connector requests without vLLM: validation, salts, and positions."""

import pytest
import torch

from ragbias import attention
from ragbias.methods import SequenceCall
from ragbias_vllm.plans import Plan, RefusedError, method_of, plan_of

PARAMS = {"method": "pcw", "lengths": [2, 3, 4], "scope": "tenant"}


def test_a_request_becomes_a_plan():
    plan = plan_of(PARAMS, 10)
    assert plan == Plan(False, "pcw", (2, 3, 4), "tenant")
    assert plan.end == 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": [2, 3, 5]}, r"lengths=\[2, 3, 5\] cover all 10 tokens of the prompt"),
        ({"lengths": [2]}, "expected lengths of a prefix and at least one document"),
        ({"lengths": [2, 0]}, "expected lengths of a prefix and at least one document"),
        ({"lengths": [-1, 3]}, "expected lengths of a prefix and at least one document"),
        ({"lengths": [2, True]}, "expected lengths of a prefix and at least one document"),
        ({"lengths": "abc"}, "wrong type"),
        ({"lengths": 5}, "wrong type"),
        ({"scope": None}, "wrong type"),
        ({"store": True}, "a request stores one document after a prefix"),
        ({"method": "pine"}, "method 'pine' does not run in vLLM's attention; expected one of pcw, ape"),
        ({"method": "ape"}, "method 'ape' does not run"),
        ({"method": "structured-prompting"}, "does not run"),
        ({"method": "pcw(reader=somewhere)"}, "does not run"),
        ({"method": "pcw(" + "(" * 5000}, "does not run"),
        ({"method": "pcw(unknown=1)"}, "unknown"),
        ({"method": "channel-scaling(profile=/etc/passwd)"}, "does not run"),
    ],
)
def test_a_request_that_cannot_run_is_refused(changes, message):
    with pytest.raises(RefusedError, match=message):
        plan_of(PARAMS | changes, 10)


def test_parameters_that_are_no_object_are_refused():
    with pytest.raises(RefusedError, match=r"kv_transfer_params\['ragbias'\] is not an object"):
        plan_of([], 10)


@pytest.mark.parametrize("params", ["the secret", {"scope": "the secret", "store": 5}, {"scope": ["the secret"]}])
def test_messages_do_not_print_the_scope(params):
    with pytest.raises(RefusedError, match="is not an object|has the wrong type") as refused:
        plan_of(params, 10)
    assert "secret" not in str(refused.value)


def test_salts_differ_by_method_lengths_scope_and_kind():
    plans = [
        Plan(False, "pcw", (2, 3, 4), ""),
        Plan(False, "pcw", (2, 4, 3), ""),
        Plan(False, "ape(temperature=1,scale=1)", (2, 3, 4), ""),
        Plan(False, "pcw", (2, 3, 4), "tenant"),
        Plan(True, "pcw", (2, 3), ""),
        Plan(True, "pcw", (2, 3), "tenant"),
    ]
    assert len({plan.cache_salt([]) for plan in plans}) == len(plans)


def test_documents_to_store_share_the_blocks_of_their_prefix():
    assert Plan(True, "", (2, 3), "").cache_salt([]) == Plan(True, "pcw", (2, 9), "").cache_salt([])
    joint = Plan(False, "rotor", (1, 2), "")
    assert joint.cache_salt([5, 6, 7, 8]) == joint.cache_salt([5, 6, 7, 9]) != joint.cache_salt([5, 6, 8, 8])


@pytest.mark.parametrize("text", ["pcw", "ape(temperature=1,scale=1)"])
def test_documents_end_side_by_side_before_the_suffix(text):
    starts = Plan(False, text, (2, 3, 5, 4), "").starts
    assert starts == [14 - 5 - 2, 14 - 5, 14 - 5, 14 - 5]  # the suffix starts at 14


def test_one_document_stays_where_it_is():
    assert Plan(False, "pcw", (2, 3), "").starts == Plan(True, "", (2, 3), "").starts == [0, 2]


def test_a_prompt_may_have_no_prefix():
    assert Plan(False, "pcw", (0, 1, 2), "").starts[1:] == [1, 1]


@pytest.mark.parametrize("text", ["pcw", "ape(temperature=1,scale=1)", "rotor"])
def test_distances_to_the_suffix_are_those_of_the_method(text):
    plan = Plan(False, text, (2, 3, 5, 4), "")
    keys = torch.empty(1, plan.end, 0)
    scoring = attention.Scoring(attention.Encoding(), 1.0)
    seq = SequenceCall(0, 0, False, 0, keys[:, :0], keys, keys, {}, tuple(plan.spans), scoring)
    method = method_of(text)
    starts, suffix = method.tail_starts(seq, seq.query)[0, 0].tolist(), method.tail_begin(seq)
    assert [plan.end - start for start in plan.starts] == [suffix - start for start in (0, *starts)]
