"""A calibration on the terminal: progress, the table of what was tried, and what to make of it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from ragbias.calibration.calibrate import calibrate
from ragbias.calibration.settings import Settings
from ragbias.profiles import Profile


def run(settings: Settings, out: Path, restart: bool, progress: Progress) -> Profile:
    """Calibrate under a progress bar for each stage, and write the profile to ``out`` and a plot beside it."""
    tasks: dict[str, TaskID] = {}

    def advance(stage: str, done: int, total: int) -> None:
        if stage not in tasks:
            tasks[stage] = progress.add_task(stage, total=total)
        progress.update(tasks[stage], advance=done)

    profile = calibrate(settings, out, restart, advance)
    if find_spec("matplotlib") is not None:
        from ragbias.calibration.plot import plot_channel

        plot_channel(profile, out.with_suffix(".png"))
    return profile


def tell(profile: Profile, console: Console) -> None:
    """What was tried, what is best, and whether it helps."""
    measured = profile.measured
    if not measured["channel_search"]["passed"]:
        console.print(
            "No channel passed Algorithm 1 (monotone in more than a quarter of the layers); "
            "those that are monotone in the most layers were tried instead."
        )
    plain = measured["choice"]["plain"]["loss"]
    table = Table(title=f"Loss of the right answers; {plain:.4f} without scaling", box=None, padding=(0, 1, 0, 0))
    for column in ("channel", "factor", "layers", "loss", "difference", "standard error"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in sorted(measured["losses"], key=lambda row: row["loss"]):
        figures = [f"{row['loss']:.4f}", f"{row['difference']:+.4f}", f"{row['standard_error']:.4f}"]
        table.add_row(str(row["channel"]), f"{row['factor']:g}", "{}-{}".format(*row["layers"]), *figures)
    console.print(table)
    correlation = measured["channel_search"]["position_correlation"]
    strongest = max((abs(r), channel) for channel, layers in correlation.items() for r in layers.values())
    console.print(f"Strongest correlation of a tried channel with the position: {strongest[0]:.2f} ({strongest[1]})")
    ranges = ", ".join(f"{name} {at[0]}-{at[1]}" for name, at in measured["layer_search"]["ranges"].items())
    console.print(f"Layers compared: {ranges}")
    check = measured["check"]
    first, last = profile.layers
    console.print(
        f"Best: channel {profile.channel}, factor {profile.factor:g}, layers {first}-{last}. On questions that had no "
        f"part in the choice: loss {check['plain']['loss']:.4f} plain, {check['scaled']['loss']:.4f} scaled, "
        f"difference {check['difference']:+.4f} (standard error {check['standard_error']:.4f})."
    )
    if not measured["beats_plain"]:
        console.print("That is not clearly better than the plain model: do not expect this profile to help.")
