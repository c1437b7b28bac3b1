"""The other experiments: measurements against the eager model's weights, bounds, and commands."""

import json
import re

import pytest
import torch
from transformers import AutoModelForCausalLM

from ragbias.errors import MethodError
from ragbias.methods import SIW, ChannelScaling, NoMethod
from studies import attention, factors, flow, heads, top_tokens
from studies.experiment import Questions, arrange_by_question, format_layers, intervals
from studies.heads import token_weights
from studies.pictures import add_title, save_pair

SMALL = ("--limit", "1", "--documents", "4", "--depths", "2")


@pytest.fixture(scope="module")
def samples(small_lm):
    return Questions("tiny", limit=2, documents=4, depths=2).samples(small_lm)


def weights_and_norms(lm, sample):
    """Return transformers' weights of the last token and the norms of the values, ``[L, H, T]`` each."""
    eager = AutoModelForCausalLM.from_config(lm.model.config, attn_implementation="eager")
    eager.load_state_dict(lm.model.state_dict())
    with torch.no_grad():
        found = eager(torch.tensor([sample.prompt.ids]), output_attentions=True, use_cache=True)
    weights = torch.stack([layer[0, :, -1] for layer in found.attentions])
    values = torch.stack([layer.values[0] for layer in found.past_key_values.layers])
    return weights, values.norm(dim=-1).repeat_interleave(weights.shape[1] // values.shape[1], dim=1)


def test_measurements_are_arranged_by_question_and_position(samples):
    shuffled = [samples[index] for index in (3, 0, 2, 1)]
    positions, arranged = arrange_by_question(shuffled, [torch.tensor([each.question, each.gold]) for each in shuffled])
    assert positions == [0, 3] and arranged.tolist() == [[[0, 0], [0, 3]], [[1, 0], [1, 3]]]


def test_intervals_are_over_questions_and_need_five():
    values = torch.tensor([[0.0, 1.0]] * 3 + [[1.0, 1.0]] * 3)
    (mean, low, high), constant = intervals(values)
    assert mean == 0.5 and 0 <= low < 0.25 and 0.75 < high <= 1 and constant == [1, 1, 1]
    assert intervals(values[:4]) == [[0.25, None, None], [1, None, None]]


@pytest.fixture(scope="module")
def results(small_lm, samples):
    return [
        attention.measure(small_lm, samples, NoMethod(), iter),
        factors.measure(small_lm, samples, ChannelScaling(3, 0.0, layers=(1, 1)), [1.0, 0.0], None, iter),
        flow.measure(small_lm, samples, NoMethod(), iter),
        heads.measure(small_lm, samples, 2.0, iter),
        top_tokens.measure(small_lm, samples, SIW(), iter),
    ]


def test_pictures_have_one_legend_and_nothing_leaves_them(results):
    for result in results:
        figure = result.figure()
        add_title(figure, "What is measured here\nmodel, method, 20 questions, 95% intervals")
        figure.draw_without_rendering()
        (legend,) = figure.legends
        assert [axis for axis in figure.axes if axis.get_legend()] == []
        boxes = [legend.get_window_extent(), *(axis.get_tightbbox() for axis in figure.axes)]
        assert all(box.x0 >= -1 and box.x1 <= figure.bbox.width + 1 for box in boxes), type(result)
        assert legend.get_window_extent().y0 >= max(box.y1 for box in boxes[1:])


def test_dark_pictures_reverse_the_colours_of_heat_maps(results, tmp_path):
    figure = results[0].figure()
    save_pair(figure, tmp_path / "a")
    assert {image.get_cmap().name for axis in figure.axes for image in axis.images} == {"Blues_r"}
    light, dark = (
        re.findall('data:image[^"]+', (tmp_path / f"a-{name}.svg").read_text()) for name in ("light", "dark")
    )
    assert light and len(light) == len(dark) and not set(light) & set(dark)


def test_the_weights_of_tokens_are_the_eager_models(small_lm, samples):
    expected, _ = weights_and_norms(small_lm, samples[0])
    torch.testing.assert_close(token_weights(small_lm, samples[0].prompt), expected, atol=1e-5, rtol=1e-4)


def test_awareness_is_the_share_above_alpha_times_the_mean(small_lm, samples):
    weights, _ = weights_and_norms(small_lm, samples[0])
    found = heads.measure(small_lm, samples[:1], 2.0, iter)
    assert torch.equal(found.score[0, 0], (weights > 2 / weights.shape[2]).float().mean(2))
    best, worst = found.score[0, 0, 1].argsort(descending=True, stable=True)[[0, -1]]
    assert found.most[0, 0, 1] == found.gold[0, 0, 1, best]
    assert found.least[0, 0, 1] == found.gold[0, 0, 1, worst]


def test_documents_are_dense_as_siw_has_it(small_lm, samples):
    weights, _ = weights_and_norms(small_lm, samples[0])
    found = top_tokens.measure(small_lm, samples[:1], SIW(sigma=1.1), iter)
    highest = weights.mean(1)[1].topk(int(0.3 * weights.shape[2])).indices
    held = torch.tensor([sum(begin <= at < end for at in highest) for begin, end in samples[0].prompt.spans]).float()
    torch.testing.assert_close(found.share[0, 0, 1], held / held.sum())
    assert found.dense[0, 0, 1].bool().tolist() == (held > 1.1 * held.mean()).tolist()
    assert found.dense[0, 0, 1].bool().tolist() == (found.share[0, 0, 1] > found.threshold).tolist()


def test_the_parts_of_the_flow_are_all_of_it(small_lm, samples):
    weights, norms = weights_and_norms(small_lm, samples[0])
    found = flow.measure(small_lm, samples[:1], NoMethod(), iter)
    torch.testing.assert_close(found.mass.sum(3), torch.ones(1, 1, 2))
    torch.testing.assert_close(found.norms.sum(3), torch.ones(1, 1, 2))
    begin, end = samples[0].prompt.spans[samples[0].gold]
    flowing = (weights * norms).sum(1)
    torch.testing.assert_close(found.norms[0, 0, :, 0], flowing[:, begin:end].sum(1) / flowing.sum(1))
    torch.testing.assert_close(found.mass[0, 0, :, 2], weights[:, :, 0].mean(1))


def test_a_factor_of_one_is_the_plain_model_in_any_layers(small_lm, samples):
    found = factors.measure(small_lm, samples, ChannelScaling(3, 0.0, layers=(1, 1)), [1.0, -4.0], None, iter)
    assert found.layers == [(1, 1), (0, 0), (0, 1)] and found.positions == [0, 3]
    for measured in (found.attention, found.loss):
        assert measured.shape == (2, 2, 3, 2)
        torch.testing.assert_close(measured[..., 0, 0], measured[..., 2, 0], atol=1e-5, rtol=1e-4)
        assert (measured[..., 1] - measured[..., 0]).abs().max() > 1e-3
    torch.testing.assert_close(found.loss[..., 0, 0], found.plain_loss, atol=1e-5, rtol=1e-4)
    with pytest.raises(MethodError, match=r"layers=\(0, 2\) do not fit a model of 2 layers"):
        factors.measure(small_lm, samples, ChannelScaling(3, 0.0, layers=None), [1.0], [(0, 2)], iter)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("heads", [], "Position-awareness by layer"),
        ("top_tokens", ["--method", "siw(sigma=1.2)"], "dense above 0.300"),
        ("flow", ["--method", "pine"], "gold document"),
        ("factors", ["--factors", "1,0"], "layers 2 to 3"),
    ],
    ids=["heads", "top-tokens", "flow", "factors"],
)
def test_the_commands_draw_tell_and_write(study, tmp_path, name, options, message):
    out, numbers = tmp_path / "a.svg", tmp_path / "a.json"
    code, output, errors = study(name, "--model", "tiny", *SMALL, *options, "--out", out, "--json", numbers)
    assert (code, errors) == (0, "") and message in " ".join(output.split())
    assert "<svg" in out.read_text() and json.loads(numbers.read_text())["positions"] == [0, 3]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("heads", ["--method", "pine"], "method 'pine'; expected ms-poe"),
        ("top_tokens", ["--method", "siw(sigma=0)"], "sigma=0"),
        ("flow", ["--method", "permutation-vote"], "permutation-vote does not change attention"),
        ("factors", ["--layers", "3"], "layers='3'; expected ranges with both ends included"),
        ("factors", ["--layers", "0-9"], "layers=(0, 9) do not fit a model of 4 layers"),
        ("factors", ["--factors", "1,two"], "factors='1,two'; expected comma-separated numbers"),
        ("factors", ["--factors", "nan"], "factor=nan; expected a number"),
        ("factors", ["--method", "channel-scaling(channel=128,factor=0,layers=(0,1))"], "has 128 channels"),
    ],
    ids=["no ms-poe", "no sigma", "votes", "no range", "too many layers", "no number", "nan", "no channel"],
)
def test_what_cannot_be_measured_is_refused(study, tmp_path, name, options, message):
    code, _, errors = study(name, "--model", "tiny", *SMALL, *options, "--out", tmp_path / "a.png")
    assert code == 2 and message in " ".join(errors.split())


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        ([3], "layer 3"),
        (range(2, 9), "layers 2 to 8"),
        ([2, 5], "layers 2, 5"),
        ([2, 3, 5, 7, 9], "5 of layers 2 to 9"),
    ],
    ids=["one", "a range", "few", "many"],
)
def test_layers_are_named_as_shortly_as_may_be(layers, named):
    assert format_layers(layers) == named
