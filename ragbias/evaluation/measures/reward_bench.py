"""RewardBench's sections: which subsets they join, and how much each weighs.

Source: Lambert et al., arXiv 2403.13787, ``rewardbench/constants.py`` of the released code
(github.com/allenai/reward-bench, Apache-2.0).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

SECTIONS: dict[str, dict[str, int]] = {  # the weight of each subset is its number of pairs
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
        "math-prm": 984,  # of 447 pairs, so that mathematics weighs as much as code
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
    """The weight of each question in its section, by section; sections without a question are left out.

    The weighted mean over the questions of a section is the mean of its subsets' means, weighted as the benchmark does;
    subsets that were not asked do not count.

    Args:
        subsets: of each question; those that RewardBench does not have belong to no section.
    """
    sizes = Counter(subsets.values())
    found = {
        section: {
            question: weights[subset] / sizes[subset] for question, subset in subsets.items() if subset in weights
        }
        for section, weights in SECTIONS.items()
    }
    return {section: questions for section, questions in found.items() if questions}
