"""``ragbias`` and ``python -m ragbias``."""

import os
import signal


def _end(*_: object) -> None:
    os.write(2, b"ragbias: interrupted\n")
    os._exit(130)


def main() -> None:
    """Run the command line; Ctrl-C ends it in one line from the first import on."""
    before = signal.signal(signal.SIGINT, _end)  # no exception: an import may catch it, or leave half a module
    from ragbias.cli import main as run

    signal.signal(signal.SIGINT, before)
    try:
        run()
    finally:
        signal.signal(signal.SIGINT, _end)


if __name__ == "__main__":
    main()
