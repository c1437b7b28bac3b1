"""Measure bias, quality and cost. This file has only constants, so that importing it does not import torch."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

TASK_NAMES = ("mdqa", "kv-retrieval", "longbench", "musique", "judge", "llmbar", "tiny")
JUDGES = ("judge", "llmbar")  # tasks in which the model chooses one of two responses
REFERENCE = "none"  # label of the plain model, to which methods are compared

Measure: TypeAlias = Literal["accuracy", "logprob"]
ACCURACY: Final = "accuracy"
LOGPROB: Final = "logprob"
