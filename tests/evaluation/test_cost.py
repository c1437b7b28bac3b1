"""Cost of methods, relative to the plain model."""

import pytest

from ragbias import DebiasedLM, Prompt
from ragbias.methods import AttentionSorting, NoMethod, PermutationVote, Segmented
from ragbias_eval.cost import DECODED_TOKENS, measure_costs


@pytest.mark.serial
def test_costs_are_ratios_to_none_and_count_all_runs():
    lm = DebiasedLM.from_pretrained("tiny", method="none")
    prompt = Prompt("Context:\n", tuple(f"Item {index} is red and round. " * 8 for index in range(8)), "Answer:")
    methods = {"sorting": AttentionSorting(rounds=3), "vote": PermutationVote(samples=4), "plain": NoMethod()}
    costs = measure_costs(lm, [prompt], methods, rounds=3)
    assert list(costs) == list(methods)
    plain = costs["plain"]
    assert plain["prefill_ratio"] == plain["decode_ratio"] == plain["peak_ratio"] == [1.0, 1.0, 1.0]
    assert costs["sorting"]["prefill_ratio"][0] > 2  # three more prefills
    assert 3.5 < costs["vote"]["peak_ratio"][0] < 4.5  # four sequences in one batch
    for cost in costs.values():
        for median, low, high in (
            cost["prefill_seconds"],
            cost["decode_seconds"],
            cost["peak_bytes"],
            cost["decode_ratio"],
        ):
            assert 0 < low <= median <= high
    cache = (
        2 * sum(p.numel() for name, p in lm.model.named_parameters() if "k_proj" in name) // lm.model.config.hidden_size
    )
    tokens = len(lm.prepare(prompt, method="none").tokens.ids)
    assert plain["peak_bytes"][0] > cache * tokens * lm.model.dtype.itemsize  # at the least the keys and values


@pytest.mark.serial
def test_the_run_that_measures_memory_warms_up(lm):
    passes = []
    with lm.model.register_forward_hook(lambda *_: passes.append(1)):
        measure_costs(lm, ["Once upon a time"], {"none": NoMethod()}, rounds=2)
    assert len(passes) == (1 + 2) * (DECODED_TOKENS + 1)


def test_methods_that_leave_the_model_unchanged_share_a_run(lm):
    passes = []
    with lm.model.register_forward_hook(lambda *_: passes.append(1)):
        costs = measure_costs(lm, [Prompt("A", ("B", "C"), "D")], {"as is": NoMethod(), "s": Segmented()}, rounds=1)
    assert len(passes) == (1 + 1) * (DECODED_TOKENS + 1) and costs["as is"] == costs["s"]
