"""Scores of answers, 0 to 1, as the benchmarks count them; the document an answer comes from; RewardBench's weights."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
# RewardBench's sections: the weight of each subset is its number of pairs; math-prm counts as much as the code subsets.
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


def normalised(answer: str) -> str:
    """Lower case, single spaces, no full stop at the end."""
    return " ".join(answer.split()).rstrip(".").lower()


def same_answer(first: str, second: str) -> bool:
    """Whether two answers have the same meaning: one contains the other, as whole words.

    Case, punctuation, white space and articles do not count.
    """
    one, other = (f" {' '.join(_words(ARTICLES.sub(' ', text.lower())))} " for text in (first, second))
    return one == other or bool(one.strip() and other.strip() and (one in other or other in one))


def squad_normalised(text: str) -> str:
    """Lower case without ASCII punctuation and articles, single spaces: the normalisation of SQuAD's evaluation."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def best_subspan_em(prediction: str, answers: Sequence[str]) -> float:
    """Whether any answer is part of the prediction's first line, both normalised: lost-in-the-middle's measure."""
    words = squad_normalised(prediction.split("\n")[0])
    return float(any(squad_normalised(answer) in words for answer in answers))


def qa_f1(prediction: str, answers: Sequence[str]) -> float:
    """The best F1 of normalised words over the answers: LongBench's measure of question answering."""
    words = Counter(squad_normalised(prediction).split())
    return max(_f1(words, Counter(squad_normalised(answer).split())) for answer in answers)


def _f1(words: Counter[str], wanted: Counter[str]) -> float:
    shared = (words & wanted).total()
    return 2 * shared / (words.total() + wanted.total()) if shared else 0.0


def value_in_answer(prediction: str, value: str) -> float:
    """Whether the value is part of the prediction, regardless of case: lost-in-the-middle's key-value measure."""
    return float(value.lower() in prediction.lower())


def exact(prediction: str, answers: Sequence[str]) -> float:
    """Whether the prediction is one of the answers, regardless of case, white space and a final full stop."""
    return float(normalised(prediction) in {normalised(answer) for answer in answers})


def source(answer: str, documents: Sequence[str], question: str) -> int | None:
    """Index of the document that an answer comes from, judged by its words; None if none or several may be it.

    It is the only one with the normalised answer as whole words. If there is none, it is the only one with most of the
    answer's words, those of the question aside, if that is at least half of them.
    """
    words = " ".join(_words(answer))
    if not words:
        return None
    texts = [f" {' '.join(_words(document))} " for document in documents]
    holders = [index for index, text in enumerate(texts) if f" {words} " in text]
    if not holders:
        own = set(_words(answer)) - set(_words(question))
        counts = [sum(f" {word} " in text for word in own) for text in texts]
        most = max(counts)
        holders = [index for index, count in enumerate(counts) if count == most > 0 and 2 * most >= len(own)]
    return holders[0] if len(holders) == 1 else None


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", normalised(text))


def question_weights(subsets: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """The weight of each question in its section of RewardBench, by section, from the question's subset.

    The weighted mean over a section is that of its subsets' means. Sections without a question are left out.
    """
    sizes = Counter(subsets.values())
    found = {
        section: {
            question: weights[subset] / sizes[subset] for question, subset in subsets.items() if subset in weights
        }
        for section, weights in SECTIONS.items()
    }
    return {section: questions for section, questions in found.items() if questions}
