"""Bounds and choices of settings that several modules use."""

from typing import Literal

from ragbias.checks import FLOAT32_MAX, Bounds

OnMissing = Literal["warn", "raise", "ignore"]  # what to do if a method finds no documents

# The upper bounds are far above real use. They catch mistyped numbers before memory runs out.
CHANNEL = Bounds(0, 1_000_000)
FACTOR = Bounds(-1_000_000, 1_000_000)  # factor of a channel
SEED = Bounds(0, 2**32 - 1)  # the range of NumPy's seeds
QUESTIONS = Bounds(1, 10_000_000)  # number of questions in a file
DOCUMENTS = Bounds(1, 10_000)
POSITIONS = Bounds(0, DOCUMENTS.most - 1)
ORDERS = Bounds(1, 1_000)
WORDS = Bounds(5, 100_000)  # number of words in a passage
BATCH = Bounds(1, 1_024)
STRING_LENGTH = Bounds(20, 1_000_000)  # shorter strings give too few points to fit a cubic
DRAWN_DOCUMENTS = Bounds(2, 10_000)
DEPTHS = Bounds(1, 1_000)
COUNTS = Bounds(1, 1_000_000)  # numbers of requests, documents and connections of a server
TOKENS = Bounds(1, 10_000_000)
MEGABYTES = Bounds(1, 2_000)
SECONDS = Bounds(0, 86_400)
ANSWER_BYTES = 2**28  # maximum size of a server's answer without streaming
POSITIVE_INT64 = Bounds(1, 2**63 - 1)
TEMPERATURE = Bounds(0, FLOAT32_MAX)
TOP_P = Bounds(0, 1, excludes_least=True)
SAMPLING_SEED = Bounds(-(2**63), 2**64 - 1)
REPETITION_PENALTY = Bounds(0, FLOAT32_MAX, excludes_least=True)
