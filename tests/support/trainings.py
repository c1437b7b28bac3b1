"""Short trainings of reader adapters: interrupted, or in a process that a test kills."""

import os
import random

from transformers.utils import logging

from ragbias import DebiasedLM, adapt
from ragbias.adaptation import AdaptSettings, run
from ragbias_eval.calibration.samples import draw_tiny_question

SHORT = dict(steps=4, batch=2, examples=8, rank=2, documents=3)
CHECKPOINT = 4  # steps between checkpoints
LONGER = dict(steps=24, batch=1, examples=8, rank=2, documents=2)


class InterruptedTrainingError(Exception):
    pass


def interrupt_at(phase, count):
    def progress(name, done, total):
        if name.startswith(phase) and done == count:
            raise InterruptedTrainingError

    return progress


def questions():
    rng = random.Random(0)
    return [draw_tiny_question(rng, 2) for _ in range(20)]


def train(out, log):
    """Train in ``out`` and write a line to ``log`` when the model is loaded, and after each lesson and step."""
    run.CHECKPOINT_STEPS, run.BATCH = CHECKPOINT, 1
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    logging.disable_progress_bar()
    lm = DebiasedLM.from_pretrained("tiny", "none")
    os.write(file, b"loaded 0\n")

    def progress(name, done, total):
        os.write(file, f"{name.partition(' ')[0]} {done}\n".encode())

    adapt(lm, questions(), out, AdaptSettings(**LONGER), progress=progress)
