"""Measuring bias, quality and cost. These names are here for modules that do not import torch."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

TASK_NAMES = ("mdqa", "kv-retrieval", "longbench", "musique", "judge", "llmbar", "tiny")
JUDGES = ("judge", "llmbar")  # tasks whose answers prefer one of two responses
HARNESS_TASK = "lm-eval"  # runs any task of lm-eval
REFERENCE = "none"  # the method that others are compared with
MMLU = "mmlu"  # short for lm-eval with this task

Measure: TypeAlias = Literal["accuracy", "logprob"]
ACCURACY: Final = "accuracy"
LOGPROB: Final = "logprob"
