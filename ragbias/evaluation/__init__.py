"""Measure bias, quality and cost. This module defines names for code that does not import torch."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

TASK_NAMES = ("mdqa", "kv-retrieval", "longbench", "musique", "judge", "llmbar", "tiny")
JUDGES = ("judge", "llmbar")  # tasks in which the model prefers one of two responses
REFERENCE = "none"  # the baseline method

Measure: TypeAlias = Literal["accuracy", "logprob"]
ACCURACY: Final = "accuracy"
LOGPROB: Final = "logprob"
