"""A calibration on the terminal: progress, the table of settings, the verdict; and the plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from numpy.polynomial import Polynomial
from rich.console import Console
from rich.progress import Progress, TaskID

from ragbias.calibration.algorithm import calibrate
from ragbias.calibration.calibration_settings import CalibrationSettings
from ragbias.calibration.channel_search import FIT_DEGREE
from ragbias.calibration.parameter_search import search_parameters
from ragbias.evaluation.report.looks import literal
from ragbias.evaluation.report.plain_table import plain_table
from ragbias.files import writing
from ragbias.methods import ChannelScaling

COLUMNS = 4  # of the plot


def run(settings: CalibrationSettings, out: Path, restart: bool, progress: Progress) -> dict[str, Any]:
    """Calibrate with a progress bar for each stage, and write the record to ``out``, for a channel with a plot."""
    if settings.method != ChannelScaling.name:
        return search_parameters(settings, out, restart, _bars(progress))
    record = calibrate(settings, out, restart, _bars(progress)).as_dict()
    if find_spec("matplotlib") is not None:
        plot_channel(record, out.with_suffix(".png"))
    return record


def _bars(progress: Progress) -> Callable[[str, int, int], None]:
    """Adds a bar for each stage as it begins."""
    tasks: dict[str, TaskID] = {}

    def advance(stage: str, done: int, total: int) -> None:
        if stage not in tasks:
            tasks[stage] = progress.add_task(stage, total=total)
        progress.update(tasks[stage], advance=done)

    return advance


def print_record(record: Mapping[str, Any], console: Console) -> None:
    """Print the settings tried, the best one, and whether it helps."""
    (_print_channel if "channel" in record else _print_parameters)(record, console)


def _print_parameters(record: Mapping[str, Any], console: Console) -> None:
    figures = ("divergence", "loss")
    names = [name for name in record["tried"][0] if name not in figures]
    table = plain_table(f"Best by {record['by']}", *names, "divergence from plain", "loss")
    for tried in record["tried"][:10]:
        table.add_row(*(f"{tried[name]:g}" for name in names), *(f"{tried[name]:.4f}" for name in figures))
    console.print(table)
    console.print("On other questions:")
    for name, found in record["check"].items():
        against_plain = f", {_difference(found)}" if "difference" in found else ""
        console.print(f"  {name}: divergence {found['divergence']:.4f}, loss {found['loss']:.4f}{against_plain}")
    console.print(f"Best: {record['method']}")
    if record["beats_plain"] is False:
        console.print("This is not clearly better than the plain model.")


def _print_channel(record: Mapping[str, Any], console: Console) -> None:
    if not record["channel_search"]["passed"]:
        console.print(
            "No channel passed Algorithm 1 (monotone in more than a quarter of the layers), "
            "so those monotone in the most layers were tried."
        )
    plain = record["choice"]["plain"]["loss"]
    headings = ("channel", "factor", "layers", "loss", "difference", "standard error")
    table = plain_table(f"Loss of the right answers; {plain:.4f} without scaling", *headings)
    for tried in sorted((*record["losses"], *record.get("two_channels", ())), key=lambda tried: tried["loss"]):
        figures = [f"{tried['loss']:.4f}", f"{tried['difference']:+.4f}", f"{tried['standard_error']:.4f}"]
        table.add_row(str(tried["channel"]), f"{tried['factor']:g}", "{}-{}".format(*tried["layers"]), *figures)
    console.print(table)
    correlation = record["channel_search"]["position_correlation"]
    strongest = max((abs(r), channel) for channel, layers in correlation.items() for r in layers.values())
    console.print(f"Strongest correlation of a tried channel with the position: {strongest[0]:.2f} ({strongest[1]})")
    ranges = ", ".join(f"{name} {at[0]}-{at[1]}" for name, at in record["layer_search"]["ranges"].items())
    console.print(f"Layers compared: {ranges}")
    check = record["check"]
    first, last = record["layers"]
    console.print(
        f"Best: channel {record['channel']}, factor {record['factor']:g}, layers {first}-{last}. On other questions: "
        f"loss {check['plain']['loss']:.4f} plain, {check['scaled']['loss']:.4f} scaled, "
        f"{_difference(check)}."
    )
    if not record["beats_plain"]:
        console.print("This is not clearly better than the plain model: do not expect this profile to help.")


def _difference(against_plain: Mapping[str, float]) -> str:
    return f"difference {against_plain['difference']:+.4f} (standard error {against_plain['standard_error']:.4f})"


def plot_channel(record: Mapping[str, Any], path: Path) -> None:
    """The channel's mean value over random strings against position, one panel for the output of each layer.

    The thick line is a cubic fit like the one that the search tests, solid where the channel was found monotone, dashed
    where not; it begins where the test does.
    """
    from matplotlib.figure import Figure  # optional

    positions, by_layer = record["curve"]["positions"], record["curve"]["by_layer"]
    search = record["channel_search"]
    monotone = search["monotone_layers"][str(record["channel"])]
    rows = -(-len(by_layer) // COLUMNS)
    columns = min(COLUMNS, len(by_layer))
    figure = Figure(figsize=(3.2 * columns, 0.5 + 2.2 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, squeeze=False).ravel()
    for panel, (layer, values) in zip(panels, by_layer.items(), strict=False):
        holds = int(layer) in monotone
        panel.plot(positions, values, color="#888888", lw=0.8)
        tested = [at for at, position in enumerate(positions) if position >= search["windows"]["skip_fit"]]
        fit = Polynomial.fit([positions[at] for at in tested], [values[at] for at in tested], FIT_DEGREE)
        panel.plot(*fit.linspace(), color="black", ls="-" if holds else "--", lw=2)
        panel.set_title(f"layer {layer}" + (", monotone" if holds else ""), fontsize=9)
        # the first tokens are often far off the rest and would flatten it
        settled = [value for position, value in zip(positions, values, strict=True) if position >= positions[-1] // 50]
        margin = 0.05 * (max(settled) - min(settled))
        panel.set_ylim(min(settled) - margin, max(settled) + margin)
        panel.tick_params(labelsize=7)
    for panel in panels[len(by_layer) :]:
        panel.set_visible(False)
    title = f"{record['model']}: mean of hidden channel {record['channel']} after each layer"
    figure.suptitle(literal(title), fontsize=11)
    figure.supxlabel("position in the string", fontsize=9)
    with writing(path):
        figure.savefig(path, dpi=130)
