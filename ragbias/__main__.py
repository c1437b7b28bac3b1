"""``python -m ragbias``."""

from ragbias.cli import main

if __name__ == "__main__":
    main()
