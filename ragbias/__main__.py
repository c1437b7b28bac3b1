"""Entry point of ``ragbias`` and ``python -m ragbias``."""

from __future__ import annotations

import os
import signal
import sys


def _exit_interrupted(*_: object) -> None:
    os.write(2, b"ragbias: interrupted\n")
    os._exit(130)


def main() -> None:
    """Run the command line. Ctrl-C prints one line and exits, even during imports."""
    before = signal.signal(signal.SIGINT, _exit_interrupted)
    try:
        from ragbias.cli import main as run
    except ModuleNotFoundError as error:
        from ragbias.extras import missing_extra_message

        if (message := missing_extra_message(error, "cli")) is None:
            raise
        print(f"ragbias: {message}", file=sys.stderr)
        sys.exit(2)

    signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":
    main()
