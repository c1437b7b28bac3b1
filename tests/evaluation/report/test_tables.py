"""Tables in the terminal."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from ragbias.data.intervals import format_estimate, format_figure
from ragbias_eval.measures.aggregates import summarise_records
from ragbias_eval.report import tables
from support.bench_records import logprobs_with, record, records_with, u_shape

POSITIONS = [0, 4, 9]
ACCURACIES = {
    "none": u_shape(POSITIONS, 0.9, 0.2),
    "attention-sorting(rounds=3)": u_shape(POSITIONS, 0.8, 0.5),
    "pine": dict.fromkeys(POSITIONS, 0.7),
}
KEY = "tiny|made-up|10"
COST = {KEY: {label: {"prefill_ratio": [1.25, 1.2, 1.31]} for label in ACCURACIES}}


def shown(*made):
    console = Console(width=80, file=io.StringIO())
    console.print(*made, sep="\n")
    return console.file.getvalue()


def test_the_best_worst_position_comes_first():
    (result,) = summarise_records(records_with(ACCURACIES, 50), COST)["results"]
    assert [label for label, _ in tables.rank_methods(result)] == ["pine", "attention-sorting(rounds=3)", "none"]
    (flat,) = summarise_records(records_with({"a": {0: 0.3}, "b": {0: 0.8}}, 50))["results"]
    assert [label for label, _ in tables.rank_methods(flat)] == ["b", "a"]


def test_two_terminal_tables_of_80_columns_show_the_figures():
    (result,) = summarise_records(records_with(ACCURACIES, 50), COST)["results"]
    text = shown(*tables.as_tables(result))
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(" ".join(line.split()[1:]) for line in text.splitlines() if line.startswith("attention-sorting"))
    (grid,) = tables.build_grids(result)
    cells = dict(zip(grid.head, grid.rows[1], strict=True))
    estimates = [cells[name].partition(" (")[0] for name in ("mean", "gap", "flips", "noise", "prefill")]
    assert words == " ".join([cells["worst"], cells["mean - none"], *estimates])


def test_cost_is_shown_only_if_every_method_was_timed():
    (result,) = summarise_records(records_with(ACCURACIES, 10), COST)["results"]
    assert tables.build_grids(result)[0].head[-1] == "prefill"
    (without,) = summarise_records(records_with(ACCURACIES, 10), {KEY: {"pine": COST[KEY]["pine"]}})["results"]
    assert tables.prefill_costs(without) == {} and tables.build_grids(without)[0].head[-1] == "noise"


def test_reordering_methods_have_a_column_and_others_a_dash():
    orders = {"none": ((0, 1, 2), (2, 0, 1)), "canonical-order": ((0, 1, 2), (0, 1, 2)), "pine": ((), ())}
    records = [
        record(
            id=f"{n}-{position}", question=f"q{n}", method=label, documents=3, gold_position=position,
            shown=each[position],
        )
        for label, each in orders.items() for n in range(6) for position in (0, 1)
    ]  # fmt: skip
    summary = summarise_records(records)
    (result,) = summary["results"]
    (grid,) = tables.build_grids(result)
    cells = {row[0]: row[grid.head.index("order")] for row in grid.rows}
    assert cells == {"none": "-0.33 (-0.33 to -0.33)", "canonical-order": "1.00 (1.00 to 1.00)", "pine": "-"}
    lines = shown(*tables.as_tables(result)).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("canonical-order") and line.split()[-1] == "1.00" for line in lines)
    (without,) = summarise_records([each for each in records if each.method != "canonical-order"])["results"]
    assert "order" not in tables.build_grids(without)[0].head


def test_figures_with_and_without_intervals():
    assert format_figure([0.714, 0.62, 0.79]) == "0.71 (0.62 to 0.79)"
    assert format_estimate([0.714, 0.62, 0.79]) == "0.71"
    assert format_figure([0.714, None, None], form=".0%") == "71%"
    assert format_figure([-0.001, -0.1, 0.1], form="+.2f") == "+0.00 (-0.10 to +0.10)"
    assert format_figure(None) == format_figure([None, None, None]) == "-"


def test_accuracy_is_compared_with_plain_mean_worst_and_best():
    (result,) = summarise_records(records_with(ACCURACIES, 50))["results"]
    (grid,) = tables.build_grids(result)
    cells = {row[0]: dict(zip(grid.head, row, strict=True)) for row in grid.rows}
    none, pine = (result["methods"][label] for label in ("none", "pine"))
    for heading, of in (("mean - none", "mean"), ("mean - none's worst", "worst"), ("mean - none's best", "best")):
        estimate, low, high = pine["minus_plain"][of]
        assert low <= estimate <= high and estimate == pytest.approx(pine["mean"][0] - none[of][0])
        assert cells["pine"][heading] == f"{estimate:+.2f} ({low:+.2f} to {high:+.2f})"
        assert cells["none"][heading] == "-"


def test_a_judges_figures_have_a_table_of_their_own():
    records = [
        record(id=f"{n}-{position}", question=f"q{n}", task="judge", gold_position=position, method=method,
               score=float(position == 0))
        for n in range(6) for position in (0, 1) for method in ("none", "long-context-reorder")
    ]  # fmt: skip
    summary = summarise_records(records)
    (result,) = summary["results"]
    assert tables.build_grids(result)[0].rows[0][-2:] == ["0.00 (0.00 to 0.00)", "1.00 (1.00 to 1.00)"]
    text = shown(*tables.as_tables(result))
    assert "swap-consistent" in text and text.count("long-context-reorder") == 3  # in no cell is it wrapped
    figures = result["methods"]["none"]["judge"]
    assert (figures["swap_consistency"][0], figures["prefers_first"][0]) == (0, 1)


SHIFTS = {
    "none": {0: 0.0, 4: -2.0, 9: 1.0},
    "pine": dict.fromkeys(POSITIONS, 0.5),
    "rotor": dict.fromkeys(POSITIONS, 0.2),
}


def test_log_probabilities_have_a_table_of_their_own():
    summary = summarise_records(logprobs_with(SHIFTS, 20))
    (result,) = summary["results"]
    (grid,) = tables.build_grids(result)
    head, body = grid.head, grid.rows
    assert grid.title.endswith("log-probability of the gold answer, in nats")
    assert [line[0] for line in body] == ["pine", "rotor", "none"]  # the best worst position first
    cells = dict(zip(head, body[0], strict=True))
    minus = result["methods"]["pine"]["logprob"]["minus_plain"]
    assert cells["mean - none"] == format_figure(minus["mean"], form="+.2f")
    assert cells["mean - none's worst"].startswith("+2.5") and cells["mean - none's best"].startswith("-0.4")
    assert cells["KL"] == "0.50 (0.50 to 0.50)" and cells["agree"].startswith("50% (")
    assert dict(zip(head, body[2], strict=True))["mean - none"] == "-"
    lines = shown(*tables.as_tables(result)).splitlines()
    assert max(map(len, lines)) <= 80 and any(line.startswith("pine") for line in lines)


def test_a_run_of_both_measures_has_both_tables():
    accurate = records_with(ACCURACIES, 20)
    figures = {(each.method, each.question, each.gold_position): each for each in logprobs_with(SHIFTS, 20)}
    both = [
        replace(each, logprob=own.logprob, kl=own.kl, agrees=own.agrees, answer_tokens=3)
        for each in accurate
        if (own := figures.get((each.method, each.question, each.gold_position)))
    ]
    (result,) = summarise_records(both)["results"]
    assert [len(grid.rows) for grid in tables.build_grids(result)] == [2, 2]
    assert len(list(tables.as_tables(result))) == 2
    assert tables.build_grids(result)[0].head == tables.build_grids(summarise_records(accurate)["results"][0])[0].head


def test_the_parts_of_a_grid_become_tables():
    head = ("method", "flips", "noise", "beyond", "verdict", "changed", "time", "memory")
    row = ["as is: none", "40% [25, 55]", "12%", "28% [13, 43]", "too few examples", "10%", "x1.00", "x1.31"]
    lines = shown(tables.as_terminal_tables(tables.Grid("30 questions", head, [row], columns=4))).splitlines()
    assert max(map(len, lines)) <= 80 and sum("as is: none" in line for line in lines) == 2
    assert {word for cell in (*head, *row) for word in cell.split()} <= set("\n".join(lines).split())
