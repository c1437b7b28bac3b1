"""A task that kills the process it runs in; a module of its own, so that other processes can import it."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from ragbias.evaluation.tasks.tiny_qa import TinyQA


@dataclass(frozen=True)
class Deadly(TinyQA):
    """The embedded model's questions; some cases kill their process.

    Args:
        mortal: ids of these cases.
        deaths: how often each kills.
        folder: where the deaths are counted.
    """

    mortal: tuple[str, ...] = ()
    deaths: int = 1
    folder: Path = Path()

    def answers(self, lm, cases, method, batch_size):
        for case in cases:
            if case.id in self.mortal:
                counted = self.folder / case.id.replace("/", "-")
                deaths = len(counted.read_text()) if counted.exists() else 0
                if deaths < self.deaths:
                    counted.write_text("x" * (deaths + 1))
                    os.kill(os.getpid(), signal.SIGKILL)
        return super().answers(lm, cases, method, batch_size)
