"""Keep finished runs in ``docs/results``, and write the tables, pictures and evidence that follow from them.

    python -m studies.publish runs

These are the tables of ``docs/results/models.md`` and ``calibrations.md``, the evidence in the package, the table of
advice in the docs, and all pictures. They are written from all kept results, with or without their runs. A run has the
name of its settings in ``docs/results/real``; calibrations are in the folder ``calibration`` of the runs.
"""

from __future__ import annotations

import re
from pathlib import Path

from ragbias.calibration.calibration_report import plot_channel
from ragbias.errors import RagBiasError, RunError
from ragbias.evaluation.bench.configuration import read_settings
from ragbias.evaluation.bench.store import changes
from ragbias.evaluation.data.run_folder import SETTINGS as RUN_SETTINGS
from ragbias.evaluation.data.run_folder import read_about
from studies import arguments_of
from studies.advice import advised, default_in_words
from studies.calibration_tables import calibrations_in_words, keep_calibrations, read_calibrations
from studies.evidence import advice_table, as_json, evidence_of, evidence_tables
from studies.kept import LARGEST, answers_size, is_finished, keep, read_kept, redraw
from studies.pictures import draw_pictures, save_pair
from studies.study_tables import Summaries, tables_of, with_costs

ROOT = Path(__file__).parents[1]
RESULTS = Path("docs/results")
SETTINGS = RESULTS / "real"
CALIBRATION = "calibration"
EVIDENCE = Path("ragbias/evaluation/evidence.json")
PAGES = (
    RESULTS / "models.md",
    RESULTS / "calibrations.md",
    Path("docs/how-to/choose-a-method.md"),
)
BESIDE_THE_ANSWERS = {"out", "cost", "engine", "workers"}  # settings that no answer depends on
PURPOSE = re.compile(r"(?:# \S.*\n)+")  # the comment that begins a file of settings, up to its command
MARKED = re.compile(r"(<!-- (studies|calibrations|advice|evidence) -->\n).*?(<!-- /\2 -->)", re.DOTALL)


def studies(root: Path = ROOT) -> list[str]:
    """The names of the studies: those of their files of settings."""
    return sorted(path.stem for path in (root / SETTINGS).glob("*.yaml"))


def purpose(file: Path) -> str:
    """The purpose of a study: the comment that begins its settings.

    Raises:
        RunError: they do not begin with a comment.
    """
    found = PURPOSE.match(file.read_text(encoding="utf-8"))
    if found is None:
        raise RunError(f"{file} has no purpose; expected a comment as its first line")
    return re.sub(r"\n?# ", " ", found[0]).strip(" :\n") + "."


def kept(root: Path = ROOT) -> Summaries:
    """The summaries of the studies that are kept, by name."""
    folders = ((name, root / RESULTS / name) for name in studies(root))
    return with_costs({name: read_kept(folder) for name, folder in folders if folder.is_dir()})


def written(root: Path = ROOT) -> dict[Path, str]:
    """The files that follow from the kept summaries, by path from the root."""
    summaries = kept(root)
    evidence = [case for name, summary in summaries.items() for case in evidence_of(name, summary)]
    found = advised(evidence)
    parts = {
        "studies": tables_of(summaries, {name: purpose(root / SETTINGS / f"{name}.yaml") for name in summaries}),
        "calibrations": calibrations_in_words(read_calibrations(root / RESULTS / CALIBRATION)),
        "advice": f"{advice_table(found)}\n{default_in_words(found)}\n",
        "evidence": evidence_tables(found),
    }
    pages = {path: (root / path).read_text(encoding="utf-8") for path in PAGES}
    filled = {path: MARKED.sub(lambda mark: mark[1] + parts[mark[2]] + mark[3], text) for path, text in pages.items()}
    return {EVIDENCE: as_json(found), **filled}


def _check_settings(run: Path, file: Path) -> None:
    """Raise ``RunError`` unless a run was made with the settings of its study."""
    then = read_about(run).get("settings", {})
    now = read_settings(file, {"out": run}).model_dump(mode="json")
    shared = (then.keys() & now.keys()) - BESIDE_THE_ANSWERS
    changed = changes({name: then[name] for name in shared}, {name: now[name] for name in shared})
    if changed or not shared:
        reason = "; ".join(changed) or f"its {RUN_SETTINGS} is missing"
        raise RunError(f"{run} is no run of {file}: {reason}; run that into a new folder")


def publish(runs: Path, unfinished: bool = False, root: Path = ROOT) -> None:
    """Keep the finished runs of a folder, and write all that follows from them.

    Raises:
        RunError: as ``keep``, a run has other settings than its study, or the answers of all studies together are too
            large to be kept.
        RunError, DataError: as ``read_run``.
    """
    for name in studies(root):
        if not (runs / name).is_dir():
            print(f"{name}: no run")
        elif is_finished(runs / name) or unfinished:
            _check_settings(runs / name, root / SETTINGS / f"{name}.yaml")
            keep(runs / name, root / RESULTS / name)
            print(f"{name}: kept")
        else:
            print(f"{name}: not finished; `make results` goes on with it")
    for name in keep_calibrations(runs / CALIBRATION, root / RESULTS / CALIBRATION):
        print(f"{CALIBRATION}/{name}: kept")
    if (size := answers_size(root / RESULTS)) > LARGEST:
        raise RunError(f"the answers of all studies take {size:,} bytes of at most {LARGEST:,}; keep fewer studies")
    draw(root)
    for path, text in written(root).items():
        (root / path).write_text(text, encoding="utf-8")
        print(f"Written: {path}")


def draw(root: Path = ROOT) -> None:
    """Redraw the reports of all studies and the plots of all calibrations from what is kept."""
    for name in kept(root):
        redraw(root / RESULTS / name)
    for name, record in read_calibrations(root / RESULTS / CALIBRATION).items():
        if "channel" in record:
            save_pair(plot_channel(record), root / RESULTS / CALIBRATION / name)
    draw_pictures(root)


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("runs", type=Path, help="the folder of the runs, each named as its study")
    parser.add_argument("--unfinished", action="store_true", help="keep what there is of runs that are not finished")
    given = parser.parse_args()
    try:
        publish(given.runs, given.unfinished)
    except RagBiasError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
