"""One line of JSON for each request and each event of the server; never any text of a prompt or an answer."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

logger = logging.getLogger("ragbias.serving")


class JsonLines(logging.Formatter):
    """A record as a JSON object; of an error the class and where it was raised, as its message may quote a prompt."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage().rstrip(),  # a warning ends with a new line
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            frames = traceback.extract_tb(record.exc_info[2])
            line["raised_at"] = [f"{Path(each.filename).name}:{each.lineno}" for each in frames[-5:]]
        return json.dumps(line, ensure_ascii=False)


class _ToStderr(logging.Handler):
    """Writes to what standard error is when a line comes."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # its reader is gone; requests are answered all the same
            print(self.format(record), file=sys.stderr, flush=True)


def log(event: str, level: int = logging.INFO, error: BaseException | None = None, **fields: Any) -> None:
    """Write a line; fields without a value are left out."""
    told = {name: value for name, value in fields.items() if value is not None}
    logger.log(level, event, extra={"fields": told}, exc_info=error)


def to_stderr() -> None:
    """Write the lines of this process, its warnings, and those of uvicorn, to standard error."""
    logging.captureWarnings(True)
    handler = _ToStderr()
    handler.setFormatter(JsonLines())
    for name, level in (
        ("ragbias.serving", logging.INFO),
        ("uvicorn.error", logging.WARNING),
        ("py.warnings", logging.WARNING),
    ):
        own = logging.getLogger(name)
        own.handlers, own.propagate = [handler], False
        own.setLevel(level)
