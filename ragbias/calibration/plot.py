"""A picture of the channel that was chosen."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure
from numpy.polynomial import Polynomial

from ragbias.calibration.statistics import FIT_DEGREE
from ragbias.errors import MethodError
from ragbias.profiles import Profile

COLUMNS = 4


def plot_channel(profile: Profile, path: Path) -> None:
    """The channel's mean value over random strings against position, one panel for the output of each layer.

    The thick line is a cubic fit like the one that the search tests, solid where the channel was found monotone, dashed
    where not; it begins where the test does.

    Raises:
        MethodError: the profile holds no curve, as those from the paper.
    """
    if "curve" not in profile.measured:
        raise MethodError(f"the profile of {profile.model} holds no curve to plot; `ragbias calibrate` writes one")
    positions, by_layer = profile.measured["curve"]["positions"], profile.measured["curve"]["by_layer"]
    search = profile.measured["channel_search"]
    monotone = search["monotone_layers"].get(str(profile.channel), [])
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
        margin = 0.05 * (max(settled) - min(settled)) or 1.0
        panel.set_ylim(min(settled) - margin, max(settled) + margin)
        panel.tick_params(labelsize=7)
    for panel in panels[len(by_layer) :]:
        panel.set_visible(False)
    figure.suptitle(f"{profile.model}: mean of hidden channel {profile.channel} after each layer", fontsize=11)
    figure.supxlabel("position in the string", fontsize=9)
    figure.savefig(path, dpi=130)
