"""Store finished runs in ``docs/results``, and update the tables, pictures and evidence that are made from them.

    python -m studies.publish runs

This updates the tables in ``docs/results/models.md`` and ``calibrations.md``, the evidence in the package, the table of
advice in the docs, and all pictures. They are made from stored results, so the runs may be deleted afterwards. The
folder of a run has the name of its settings file in ``docs/results/real``. Calibrations are in ``calibration``.
"""

from __future__ import annotations

import re
from pathlib import Path

from ragbias.display import describe_changes
from ragbias.errors import RagBiasError, RunError
from ragbias_eval.bench_settings import read_settings
from ragbias_eval.runs import SETTINGS as RUN_SETTINGS
from ragbias_eval.runs import read_run_description
from studies import arguments_of
from studies.advice import describe_coverage, describe_default, recommend_all
from studies.calibration_tables import calibration_tables, read_calibrations, store_calibrations
from studies.evidence import advice_table, as_json, evidence_tables, extract_evidence
from studies.pictures import draw_channel, draw_pictures, save_pair
from studies.stored_runs import LARGEST, answers_size, is_finished, read_stored, redraw_report, store
from studies.study_tables import Summaries, add_costs, make_tables

ROOT = Path(__file__).parents[1]
RESULTS = Path("docs/results")
SETTINGS = RESULTS / "real"
CALIBRATION = "calibration"
EVIDENCE = Path("ragbias/cli/evidence.json")
PAGES = (
    RESULTS / "models.md",
    RESULTS / "calibrations.md",
)
NO_EFFECT_ON_ANSWERS = {"out", "cost", "engine", "workers"}  # settings that do not affect answers
PURPOSE = re.compile(r"(?:# \S.*\n)+")  # the comment at the beginning of a settings file, up to its command
MARKED = re.compile(r"(<!-- (studies|calibrations|advice|evidence) -->\n).*?(<!-- /\2 -->)", re.DOTALL)


def study_names(root: Path = ROOT) -> list[str]:
    """Return the names of the studies, which are the names of their settings files."""
    return sorted(path.stem for path in (root / SETTINGS).glob("*.yaml"))


def read_purpose(file: Path) -> str:
    """Read the purpose of a study from the comment at the beginning of its settings file.

    Raises:
        RunError: the file does not begin with a comment.
    """
    comment = PURPOSE.match(file.read_text(encoding="utf-8"))
    if comment is None:
        raise RunError(f"{file} has no purpose; expected a comment as its first line")
    return re.sub(r"\n?# ", " ", comment[0]).strip(" :\n") + "."


def stored_summaries(root: Path = ROOT) -> Summaries:
    """Read the stored summaries of the studies, by name."""
    folders = ((name, root / RESULTS / name) for name in study_names(root))
    return add_costs({name: read_stored(folder) for name, folder in folders if folder.is_dir()})


def make_files(root: Path = ROOT) -> dict[Path, str]:
    """Make the contents of all files that depend on the stored summaries, by path relative to the root."""
    summaries = stored_summaries(root)
    evidence = [case for name, summary in summaries.items() for case in extract_evidence(name, summary)]
    all_advice = recommend_all(evidence)
    parts = {
        "studies": make_tables(summaries, {name: read_purpose(root / SETTINGS / f"{name}.yaml") for name in summaries}),
        "calibrations": calibration_tables(read_calibrations(root / RESULTS / CALIBRATION)),
        "advice": f"{describe_coverage(all_advice)}\n\n{advice_table(all_advice)}\n{describe_default(all_advice)}\n",
        "evidence": evidence_tables(all_advice),
    }
    pages = {path: (root / path).read_text(encoding="utf-8") for path in PAGES}
    filled = {path: MARKED.sub(lambda mark: mark[1] + parts[mark[2]] + mark[3], text) for path, text in pages.items()}
    return {EVIDENCE: as_json(all_advice), **filled}


def _check_settings(run: Path, file: Path) -> None:
    """Raise ``RunError`` unless a run used the settings of its study."""
    then = read_run_description(run).get("settings", {})
    now = read_settings(file, {"out": run}).model_dump(mode="json")
    shared = (then.keys() & now.keys()) - NO_EFFECT_ON_ANSWERS
    changed = describe_changes({name: then[name] for name in shared}, {name: now[name] for name in shared})
    if changed or not shared:
        reason = "; ".join(changed) or f"its {RUN_SETTINGS} is missing"
        raise RunError(f"{run} is not a run of {file}: {reason}; run the study into a new folder")


def publish(runs: Path, unfinished: bool = False, root: Path = ROOT) -> None:
    """Store the finished runs of a folder, and update all files that are made from them.

    Raises:
        RunError: as in ``store``; a run has other settings than its study; or all studies together have too many bytes
            of answers.
        RunError, DataError: as in ``read_run``.
    """
    for name in study_names(root):
        if not (runs / name).is_dir():
            print(f"{name}: no run")
        elif is_finished(runs / name) or unfinished:
            _check_settings(runs / name, root / SETTINGS / f"{name}.yaml")
            store(runs / name, root / RESULTS / name)
            print(f"{name}: stored")
        else:
            print(f"{name}: not finished; `make results` resumes it")
    for name in store_calibrations(runs / CALIBRATION, root / RESULTS / CALIBRATION):
        print(f"{CALIBRATION}/{name}: stored")
    if (size := answers_size(root / RESULTS)) > LARGEST:
        raise RunError(f"the answers of all studies take {size:,} bytes of at most {LARGEST:,}; store fewer studies")
    redraw_all(root)
    for path, text in make_files(root).items():
        (root / path).write_text(text, encoding="utf-8")
        print(f"Written: {path}")


def redraw_all(root: Path = ROOT) -> None:
    """Redraw the reports of all stored studies and the plots of all stored calibrations."""
    for name in stored_summaries(root):
        redraw_report(root / RESULTS / name)
    for name, record in read_calibrations(root / RESULTS / CALIBRATION).items():
        if "channel" in record:
            save_pair(draw_channel(record), root / RESULTS / CALIBRATION / name)
    draw_pictures(root)


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("runs", type=Path, help="folder of the runs; each run is named after its study")
    parser.add_argument("--unfinished", action="store_true", help="also store the finished part of unfinished runs")
    parsed = parser.parse_args()
    try:
        publish(parsed.runs, parsed.unfinished)
    except RagBiasError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
