"""JSON log lines and Prometheus metrics of a server. Neither holds text of a prompt or an answer."""

from __future__ import annotations

import json
import logging
import time
import traceback
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
logger = logging.getLogger("ragbias.serving")


class JsonLines(logging.Formatter):
    """Format a record as a JSON object. An error's message may quote a prompt, so only its class and lines appear."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage().rstrip(),  # warnings end with a newline
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            frames = traceback.extract_tb(record.exc_info[2])
            line["raised_at"] = [f"{Path(each.filename).name}:{each.lineno}" for each in frames[-5:]]
        return json.dumps(line, ensure_ascii=False)


def log(event: str, level: int = logging.INFO, error: BaseException | None = None, **fields: Any) -> None:
    """Write a log line; fields that are None are left out."""
    present = {name: value for name, value in fields.items() if value is not None}
    logger.log(level, event, extra={"fields": present}, exc_info=error)


def log_to_stderr() -> None:
    """Write the logs of the server and uvicorn, and warnings, to standard error."""
    logging.captureWarnings(True)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    levels = {"ragbias.serving": logging.INFO, "uvicorn.error": logging.WARNING, "py.warnings": logging.WARNING}
    for name, level in levels.items():
        found = logging.getLogger(name)
        found.handlers, found.propagate = [handler], False
        found.setLevel(level)


class Metrics:
    """Prometheus metrics of one application, in a separate registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"ragbias_{name}", about, labels, registry=registry)

        def histogram(name: str, about: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"ragbias_{name}", about, labels, registry=registry, buckets=buckets)

        self.requests = counter("requests", "Requests by path and status.", "path", "status")
        self.seconds = histogram("request_seconds", "Time to the last byte of a response.", SECONDS, "path")
        self.first = histogram("time_to_first_token_seconds", "Streamed answers only.", SECONDS, "model")
        self.answers = counter("answers", "Answers by the method that ran.", "model", "method")
        self.plain = counter("plain_answers", "Answers that ran without the requested method.", "model", "method")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens.", "model")
        self.cached_tokens = counter("cached_tokens", "Prompt tokens from the document cache.", "model")
        self.completion_tokens = counter("completion_tokens", "Answer tokens.", "model")
        self.disconnects = counter("disconnects", "Requests whose client left early.")
        self.batches = histogram("batch_requests", "Requests per padded batch.", (1, 2, 4, 8, 16, 32, 64), "model")
        self.waiting = Gauge("ragbias_waiting_requests", "Waiting requests.", ["model"], registry=registry)
        self.running = Gauge("ragbias_running_requests", "Running requests.", ["model"], registry=registry)

    def exposition(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self.registry)
