"""Entry point of ``ragbias`` and ``python -m ragbias``."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _exit_interrupted(*_: object) -> None:
    os.write(2, b"ragbias: interrupted\n")
    os._exit(130)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Raise ``KeyboardInterrupt``. During an import, exit instead, because the imported module may catch the error."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _exit_interrupted()
        frame = frame.f_back
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line. Ctrl-C prints one line and exits, also during imports."""
    before = signal.signal(signal.SIGINT, _exit_interrupted)
    try:
        from ragbias.cli import main as run
    except ModuleNotFoundError as error:
        from ragbias.extras import missing_extra_message

        if (message := missing_extra_message(error, "cli")) is None:
            raise
        print(f"ragbias: {message}", file=sys.stderr)
        sys.exit(2)

    signal.signal(signal.SIGINT, _interrupt if before is signal.default_int_handler else before)
    try:
        run()
    finally:
        signal.signal(signal.SIGINT, _exit_interrupted)


if __name__ == "__main__":
    main()
