"""The task ``llmbar``: pairs of responses of which one follows the instruction, judged as those of the task ``judge``.

Source: Zeng et al., Evaluating Large Language Models at Evaluating Instruction Following, arXiv 2310.07641.
"""

from __future__ import annotations

from dataclasses import dataclass

from ragbias.evaluation.data.jsonl import Line
from ragbias.evaluation.tasks.judge import Judge, Pair


@dataclass(frozen=True)
class LLMBar(Judge):
    """Pairs from LLMBar's files, each in both orders; arguments, verdicts and scores are those of ``Judge``.

    A file is a list of objects with ``input``, ``output_1``, ``output_2`` and ``label``: 1 or 2, the better output. It
    is a group of its own in reports.
    """

    name = "llmbar"

    def pair(self, line: Line, source: str) -> Pair:
        outputs = line.text("output_1"), line.text("output_2")
        label = line.choice("label", (1, 2))
        return Pair(line.text("input"), outputs[label - 1], outputs[2 - label], source.removesuffix(".json"))
