"""Keep finished runs in ``docs/results``, and write all that follows from them.

    python -m studies.publish runs

That is the tables of ``docs/results/models.md`` and ``calibrations.md``, the evidence that the package brings, and the
tables of advice in the docs. They are written from all that is kept, whether its run is there or not. Runs are known by
the names of the files of settings in ``docs/results/real``; calibrations lie in the folder ``calibration`` of the runs.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ragbias.errors import RagBiasError, RunError
from ragbias.evaluation.advice import wording
from ragbias.evaluation.advice.evidence import as_json, evidence_of
from ragbias.evaluation.advice.rule import advised
from ragbias.evaluation.bench.configuration import read_settings
from ragbias.evaluation.bench.store import changes
from ragbias.evaluation.data.run_folder import SETTINGS as RUN_SETTINGS
from ragbias.evaluation.data.run_folder import read_about
from studies.calibration_tables import calibrations_in_words, keep_calibrations, read_calibrations
from studies.kept import LARGEST, answers_size, is_finished, keep, read_kept
from studies.study_tables import Summaries, tables_of, with_costs

ROOT = Path(__file__).parents[1]
RESULTS = Path("docs/results")
SETTINGS = RESULTS / "real"
CALIBRATION = "calibration"
EVIDENCE = Path("ragbias/evaluation/advice/evidence.json")
PAGES = (
    RESULTS / "models.md",
    RESULTS / "calibrations.md",
    Path("docs/how-to/choose-a-method.md"),
    Path("README.md"),
)
BESIDE_THE_ANSWERS = {"out", "cost", "engine", "workers"}  # settings that no answer depends on
PURPOSE = re.compile(r"(?:# \S.*\n)+")  # the comment that begins a file of settings, up to its command
MARKED = re.compile(r"(<!-- (studies|calibrations|advice|advice with reasons) -->\n).*?(<!-- /\2 -->)", re.DOTALL)


def studies(root: Path = ROOT) -> list[str]:
    """The names of the studies: those of their files of settings."""
    return sorted(path.stem for path in (root / SETTINGS).glob("*.yaml"))


def purpose(file: Path) -> str:
    """What a study is for, in the words that begin its settings.

    Raises:
        RunError: they do not begin with a comment.
    """
    told = PURPOSE.match(file.read_text(encoding="utf-8"))
    if told is None:
        raise RunError(f"{file} does not say what it is for; expected a comment as its first line")
    return re.sub(r"\n?# ", " ", told[0]).strip(" :\n") + "."


def kept(root: Path = ROOT) -> Summaries:
    """The summaries of the studies that are kept, by name."""
    folders = ((name, root / RESULTS / name) for name in studies(root))
    return with_costs({name: read_kept(folder) for name, folder in folders if folder.is_dir()})


def written(root: Path = ROOT) -> dict[Path, str]:
    """What follows from the summaries that are kept, by path from the root."""
    summaries = kept(root)
    evidence = [case for name, summary in summaries.items() for case in evidence_of(name, summary)]
    found = advised(evidence)
    parts = {
        "studies": tables_of(summaries, {name: purpose(root / SETTINGS / f"{name}.yaml") for name in summaries}),
        "calibrations": calibrations_in_words(read_calibrations(root / RESULTS / CALIBRATION)),
        "advice": wording.as_markdown(found, why=False),
        "advice with reasons": f"{wording.as_markdown(found)}\n{wording.default_in_words(found)}\n",
    }
    pages = {path: (root / path).read_text(encoding="utf-8") for path in PAGES}
    filled = {path: MARKED.sub(lambda mark: mark[1] + parts[mark[2]] + mark[3], text) for path, text in pages.items()}
    return {EVIDENCE: as_json(evidence), **filled}


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
    """Keep the runs in a folder of them, and write all that follows; says what was kept and what was not.

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
    for path, text in written(root).items():
        (root / path).write_text(text, encoding="utf-8")
        print(f"Written: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="the folder of the runs, each named as its study")
    parser.add_argument("--unfinished", action="store_true", help="keep what there is of runs that are not finished")
    given = parser.parse_args()
    try:
        publish(given.runs, given.unfinished)
    except RagBiasError as error:
        parser.exit(2, f"{error}\n")
