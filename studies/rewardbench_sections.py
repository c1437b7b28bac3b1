"""Score judges by RewardBench's sections, from output folders of ``ragbias bench --task judge``.

A section's score is the weighted mean of its subsets, as in the benchmark. Intervals are 95% bootstrap intervals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path

import numpy as np

from ragbias.cli.terminal import console, write_json
from ragbias.data.intervals import Estimate, Interval, draw_counts, format_figure, percentile_interval
from ragbias.errors import RagBiasError
from ragbias_eval.measures.aggregates import scored_records
from ragbias_eval.measures.per_question import group_by, mean_by_question
from ragbias_eval.report.tables import make_table
from ragbias_eval.runs import Record, read_run
from studies import arguments_of

# RewardBench's sections: a subset's weight is its number of pairs; math-prm weighs as much as all code subsets.
# Source: Lambert et al., arXiv 2403.13787, rewardbench/constants.py of the released code (Apache-2.0)
SECTIONS: dict[str, dict[str, int]] = {
    "Chat": {
        "alpacaeval-easy": 100,
        "alpacaeval-length": 95,
        "alpacaeval-hard": 95,
        "mt-bench-easy": 28,
        "mt-bench-med": 40,
    },
    "Chat Hard": {
        "mt-bench-hard": 37,
        "llmbar-natural": 100,
        "llmbar-adver-neighbor": 134,
        "llmbar-adver-GPTInst": 92,
        "llmbar-adver-GPTOut": 47,
        "llmbar-adver-manual": 46,
    },
    "Safety": {
        "refusals-dangerous": 100,
        "refusals-offensive": 100,
        "xstest-should-refuse": 250,
        "xstest-should-respond": 154,
        "donotanswer": 136,
    },
    "Reasoning": {
        "math-prm": 984,
        "hep-cpp": 164,
        "hep-go": 164,
        "hep-java": 164,
        "hep-js": 164,
        "hep-python": 164,
        "hep-rust": 164,
    },
}
SUBSETS = {subset for weights in SECTIONS.values() for subset in weights}


def question_weights(subsets: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Compute the weights of questions in each section of RewardBench, from the questions' subsets.

    The mean with these weights is the section's weighted mean of subset means. Sections without questions are left out.
    """
    sizes = Counter(subsets.values())
    weighted = {
        section: {
            question: weights[subset] / sizes[subset] for question, subset in subsets.items() if subset in weights
        }
        for section, weights in SECTIONS.items()
    }
    return {section: questions for section, questions in weighted.items() if questions}


def section_scores(records: Sequence[Record]) -> dict[str, Estimate]:
    """Score one method's answers by section, as ``[estimate, low, high]``."""
    values = mean_by_question(records, attrgetter("score"))
    weighted = question_weights({record.question: record.group for record in records})
    return {
        section: weighted_mean({question: values[question] for question in weights}, weights).as_list()
        for section, weights in weighted.items()
    }


def weighted_mean(values: Mapping[str, float], weights: Mapping[str, float]) -> Interval:
    """Compute the weighted mean of one value per question, with its interval. Weights must be positive."""
    questions = sorted(values)
    weight = np.array([weights[question] for question in questions])
    weighted = weight * np.array([values[question] for question in questions], dtype=float)
    counts = draw_counts(len(questions))
    return percentile_interval(float(weighted.sum() / weight.sum()), counts @ weighted / (counts @ weight))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="output folder of a bench")
    parser.add_argument("--json", type=Path, help="file of the results")
    parsed = parser.parse_args(arguments)
    try:
        records = scored_records(record for folder in parsed.folders for record in read_run(folder).records)
    except RagBiasError as error:
        parser.exit(2, f"{error}\n")
    by_judge = group_by(records, attrgetter("model", "method"))
    scores = {f"{model}, {method}": section_scores(answers) for (model, method), answers in by_judge.items()}
    table = make_table("Accuracy of the judge", "judge", *SECTIONS, wrap=True)
    for judge, by_section in scores.items():
        table.add_row(judge, *(format_figure(by_section.get(section)) for section in SECTIONS))
    console.print(table)
    groups = {record.group for record in records}
    console.print(f"Sections cover {len(groups & SUBSETS)} of RewardBench's {len(SUBSETS)} subsets.")
    if others := sorted(groups - SUBSETS):
        console.print(f"No section of RewardBench has {', '.join(map(repr, others))}.")
    write_json(scores, parsed.json)


if __name__ == "__main__":
    main()
