"""Content of the figures. Their look was checked by eye."""

import io

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.text import Text

from ragbias_eval import ACCURACY, LOGPROB
from ragbias_eval.measures.aggregates import summarise_records
from ragbias_eval.report.figures import (
    RELATIVE_LOGPROB,
    draw_accuracy_by_cost,
    draw_curves,
    draw_small_multiples,
    make_styles,
    panel_title,
)
from support.bench_records import logprobs_with, records_with, u_shape

LABELS = [f"method-{index}(parameter={index}, another={index})" for index in range(15)]


def results_of(labels, counts=(10,), questions=12, noise=()):
    records = []
    for documents in counts:
        positions = [0, documents // 2, documents - 1]
        shape = {label: u_shape(positions, 0.9, 0.2 + 0.04 * index) for index, label in enumerate(labels)}
        records += records_with(shape, questions, documents)
    timed = {label: {"prefill_ratio": [1.0 + 0.1 * index] * 3} for index, label in enumerate(labels)}
    return summarise_records(records, {f"tiny|made-up|{count}": timed for count in counts}, noise or records)["results"]


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text)]


def overlapping(figure, wanted):
    """Return the pairs of overlapping texts."""
    figure.draw_without_rendering()
    found = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text() in wanted]
    assert len(found) == len(wanted)
    boxes = [text.get_window_extent() for text in found]
    return [(a, b) for index, a in enumerate(boxes) for b in boxes[index + 1 :] if a.overlaps(b)]


def test_few_methods_share_a_panel_and_many_have_one_each():
    (few,) = results_of(["none", "pine"])
    (panel,) = draw_curves(few, make_styles(few["methods"]), ACCURACY).axes
    assert {"none", "pine"} <= set(texts(draw_curves(few, make_styles(few["methods"]), ACCURACY)))
    assert len(panel.collections) == 2  # the bands
    (many,) = results_of(["none", *LABELS])
    figure = draw_curves(many, make_styles(many["methods"]), ACCURACY)
    assert len(figure.axes) == 15
    first = {label: line.get_ydata() for line in figure.axes[0].lines if (label := line.get_label())[0] != "_"}
    np.testing.assert_allclose(
        first["none (plain model)"], [point[0] for point in many["methods"]["none"]["accuracy_by_position"].values()]
    )


def test_lines_are_drawn_at_gold_positions_counted_from_1():
    (result,) = results_of(["none", "pine"])
    drawn = {
        line.get_label(): line for line in draw_curves(result, make_styles(result["methods"]), ACCURACY).axes[0].lines
    }
    points = result["methods"]["pine"]["accuracy_by_position"]
    assert list(drawn["pine"].get_xdata()) == [1, 6, 10]
    assert list(drawn["pine"].get_ydata()) == [points[position][0] for position in ("0", "5", "9")]


def test_methods_are_distinguishable_without_colour():
    (result,) = results_of(["none", *LABELS])
    figure = draw_accuracy_by_cost(result, make_styles(result["methods"]))
    looks = {
        (line.get_marker(), line.get_markerfacecolor() == "white")
        for line in figure.axes[0].lines
        if line.get_label() in result["methods"]
    }
    assert len(looks) == 16
    looks = list(make_styles(result["methods"]).values())
    assert len({(str(look["linestyle"]), look["marker"]) for look in looks[:6]}) == 6


def test_the_plain_model_alone_is_black_wherever_it_stands():
    looks = make_styles(["pine", *LABELS, "none", "pine"])
    assert [label for label, look in looks.items() if look["color"] == "#000000"] == ["none"]
    assert make_styles(["a", "b"])["a"] == looks["none"] and make_styles([]) == {}


def test_a_method_looks_the_same_in_all_figures_of_a_report():
    results = results_of(["none", "pine", *LABELS[:3]]) + results_of(["pine", "none", LABELS[2]])
    looks = make_styles(label for result in results for label in result["methods"])
    titles = {panel_title(label): label for label in looks}
    drawn = {label: {"curves": set(), "costs": set()} for label in looks}
    for result in results:
        for kind, figure in (
            ("curves", draw_curves(result, looks, ACCURACY)),
            ("costs", draw_accuracy_by_cost(result, looks)),
        ):
            for axis in figure.axes:
                for line in axis.lines:
                    name = {"none (plain model)": "none"}.get(line.get_label(), line.get_label())
                    label = name if name in looks else titles.get(axis.get_title())
                    if line.get_marker() != "None" and label:
                        drawn[label][kind].add((line.get_color(), line.get_marker()))
    for label, look in looks.items():
        assert drawn[label] == {"curves": {(look["color"], look["marker"])}, "costs": {(look["color"], look["marker"])}}


@pytest.mark.parametrize("kind", ["curves", "cost"])
def test_names_of_16_methods_do_not_overlap(kind):
    (result,) = results_of(["none", *LABELS])
    looks = make_styles(result["methods"])
    if kind == "curves":
        figure = draw_curves(result, looks, ACCURACY)
        wanted = {panel_title(label) for label in LABELS}  # the plain model's curve is in every panel
    else:
        figure, wanted = draw_accuracy_by_cost(result, looks), set(result["methods"])
    assert wanted <= set(texts(figure))
    assert overlapping(figure, wanted) == []


def test_names_with_dollar_signs_are_drawn_letter_by_letter():
    name = r"a $\no$ b $x$ c"
    (first,) = results_of(["none", "pine"])
    first["methods"][name] = first["methods"].pop("pine")
    looks = make_styles(first["methods"])
    made = [draw_curves(first, looks, ACCURACY), draw_accuracy_by_cost(first, looks)]
    made += [draw_small_multiples({name: {"0": [0.5, 0.4, 0.6]}}, looks)]
    for figure in made:
        written = io.StringIO()
        with rc_context({"svg.fonttype": "none"}):
            figure.savefig(written, format="svg")
        assert name in written.getvalue()


@pytest.mark.parametrize("labels", [["none", "pine"], ["none", "pine", *LABELS[:3]]], ids=["overlaid", "panels"])
def test_log_probabilities_have_an_axis_against_the_plain_mean(labels):
    shifts = {label: {0: 0.0, 4: -2.0 + index, 9: 1.0} for index, label in enumerate(labels)}
    (result,) = summarise_records(logprobs_with(shifts, 12))["results"]
    figure = draw_curves(result, make_styles(result["methods"]), LOGPROB)
    assert any("(nats, plain mean = 0)" in text for text in texts(figure))
    low, high = figure.axes[0].get_ylim()
    assert low < -1 and high > 1
    points = result["methods"]["none"]["logprob"]["minus_plain"]["by_position"]
    drawn = {line.get_label(): line for line in figure.axes[0].lines}
    plain = drawn["none" if len(labels) == 2 else "none (plain model)"]
    assert list(plain.get_ydata()) == [points[position][0] for position in ("0", "4", "9")]


def test_log_probabilities_are_absolute_without_the_plain_model():
    (result,) = summarise_records(logprobs_with({"pine": {0: 0.0, 9: -1.0}}, 12))["results"]
    figure = draw_curves(result, make_styles(result["methods"]), LOGPROB)
    assert "log-probability (nats)" in texts(figure)


def test_one_low_method_does_not_flatten_the_other_curves():
    curve = {"0": [0.5, 0.4, 0.6], "9": [0.1, 0.0, 0.2]}
    curves = {"none": curve, "a": curve, "b": curve, "c": curve, "far": {"0": [-9, -10, -8], "9": [-9, -10, -8]}}
    *first_row, last = draw_small_multiples(curves, make_styles(curves), RELATIVE_LOGPROB).axes
    assert all(axis.get_ylim()[0] > -1 for axis in first_row) and last.get_ylim()[0] < -9
    *first_row, last = draw_small_multiples(curves, make_styles(curves)).axes
    assert {axis.get_ylim() for axis in first_row} == {last.get_ylim()}
