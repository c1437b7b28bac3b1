"""A task that kills its process, in a separate module, so that other processes can import it."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from ragbias.evaluation.tasks.tiny_qa import TinyQA


@dataclass(frozen=True)
class Deadly(TinyQA):
    """The embedded model's questions, some of which kill their process.

    Args:
        mortal: ids of the cases that kill.
        deaths: number of times that each of these cases kills.
        folder: folder of the files that count deaths.
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
