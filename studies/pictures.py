"""The pictures of the docs that show results of studies, in a light and a dark variant."""

from __future__ import annotations

from pathlib import Path

from ragbias.evaluation.names import REFERENCE
from ragbias.evaluation.report.charts import RELATIVE_LOGPROB, overlaid
from ragbias.evaluation.report.figures import save_pair
from ragbias.methods import DEFAULT_METHOD
from studies.kept import read_kept

POSITIONS = "smollm2-10-positions"  # the study with the gold document at every position


def draw_pictures(root: Path) -> None:
    """Draw the picture of the README: the plain model by position, and the default method."""
    if not (root / "docs/results" / POSITIONS).is_dir():
        return
    (result,) = read_kept(root / "docs/results" / POSITIONS)["results"]
    curves = {
        f"{label} ({name})": result["methods"][label]["logprob"]["minus_plain"]["by_position"]
        for label, name in ((REFERENCE, "plain SmolLM2"), (DEFAULT_METHOD, "order-invariant"))
    }
    save_pair(overlaid({"": curves}, scale=RELATIVE_LOGPROB), root / "docs/bias")
