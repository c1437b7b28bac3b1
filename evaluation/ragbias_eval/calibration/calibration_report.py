"""Print the progress and the result of a calibration, and plot a channel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.figure import Figure
from numpy import linspace
from numpy.polynomial import Polynomial
from rich.console import Console
from rich.progress import Progress, TaskID

from ragbias_eval.calibration.channel_search import FIT_DEGREE
from ragbias_eval.report.figures import INK, PALE, make_canvas
from ragbias_eval.report.tables import make_table

MAX_PANELS = 9  # layers in the plot


def stage_progress(progress: Progress) -> Callable[[str, int, int], None]:
    """Return a progress callback that adds a bar for each stage."""
    tasks: dict[str, TaskID] = {}

    def advance(stage: str, total: int, done: int) -> None:
        if stage not in tasks:
            tasks[stage] = progress.add_task(stage, total=total)
        progress.update(tasks[stage], advance=done)

    return advance


def print_record(record: Mapping[str, Any], console: Console) -> None:
    """Print all measured settings, the best setting, and whether it helps."""
    if not record["channel_search"]["passed"]:
        console.print(
            "Algorithm 1 requires a channel that is monotone in more than a quarter of the layers. There is none, "
            "so the channels that are monotone in the most layers were measured."
        )
    plain = record["choice"]["plain"]["loss"]
    headings = ("channel", "factor", "layers", "loss", "difference", "standard error")
    table = make_table(f"Cross-entropy of right answers; {plain:.4f} without scaling", *headings)
    for tried in sorted(record["losses"], key=lambda tried: tried["loss"]):
        figures = [f"{tried['loss']:.4f}", f"{tried['difference']:+.4f}", f"{tried['standard_error']:.4f}"]
        table.add_row(str(tried["channel"]), f"{tried['factor']:g}", "{}-{}".format(*tried["layers"]), *figures)
    console.print(table)
    check = record["check"]
    first, last = record["layers"]
    console.print(
        f"Best: channel {record['channel']}, factor {record['factor']:g}, layers {first}-{last}. On other questions: "
        f"loss {check['plain']['loss']:.4f} plain, {check['scaled']['loss']:.4f} scaled, "
        f"{format_difference(check)}."
    )
    if not record["beats_plain"]:
        console.print("This is not clearly better than the plain model. Do not expect the profile to help.")


def format_difference(against_plain: Mapping[str, float]) -> str:
    return f"difference {against_plain['difference']:+.4f} (standard error {against_plain['standard_error']:.4f})"


def plot_channel(record: Mapping[str, Any]) -> Figure:
    """Plot the channel's activation by position, averaged over random strings, for up to ``MAX_PANELS`` layers.

    The thick line is the search's cubic fit. It is solid if the fit is monotone, else dashed.
    """
    positions, by_layer, search = record["curve"]["positions"], record["curve"]["by_layer"], record["channel_search"]
    monotone = search["monotone_layers"][str(record["channel"])]
    layers = [list(by_layer)[round(index)] for index in linspace(0, len(by_layer) - 1, min(MAX_PANELS, len(by_layer)))]
    title = f"{record['model']}: mean of hidden channel {record['channel']} over random strings, by layer"
    figure, panels = make_canvas(len(layers), height=1.7, title=title, sharex=True)
    skipped = next(index for index, position in enumerate(positions) if position >= search["windows"]["skip_fit"])
    visible = next(index for index, position in enumerate(positions) if position >= positions[-1] // 50)
    for panel, layer in zip(panels, layers, strict=True):
        values, is_monotone = by_layer[layer], int(layer) in monotone
        panel.plot(positions, values, color=PALE, lw=0.6)
        fit = Polynomial.fit(positions[skipped:], values[skipped:], FIT_DEGREE)
        panel.plot(*fit.linspace(), color=INK, ls="-" if is_monotone else "--", lw=2)
        panel.set_title(f"layer {layer}" + (", monotone" if is_monotone else ""), fontsize=9)
        # the first tokens are often outliers, which would flatten the rest of the curve
        low, high = min(values[visible:]), max(values[visible:])
        panel.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    figure.supxlabel("position in the string", fontsize=10)
    return figure
