"""What Prometheus is told."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """The counters of one application, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"ragbias_{name}", about, labels, registry=registry)

        def histogram(name: str, about: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"ragbias_{name}", about, labels, registry=registry, buckets=buckets)

        self.requests = counter("requests", "Requests by path and status.", "path", "status")
        self.seconds = histogram("request_seconds", "Until the last byte of a response.", SECONDS, "path")
        self.first = histogram("time_to_first_token_seconds", "Of streamed answers.", SECONDS, "model")
        self.answers = counter("answers", "Answers by the method that ran.", "model", "method")
        self.plain = counter("plain_answers", "Answers without the method that was asked for.", "model", "method")
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts.", "model")
        self.cached_tokens = counter("cached_tokens", "Of those, from the document cache.", "model")
        self.completion_tokens = counter("completion_tokens", "Tokens of answers.", "model")
        self.disconnects = counter("disconnects", "Requests whose client left before the end.")
        self.batches = histogram("batch_requests", "Requests of a padded batch.", (1, 2, 4, 8, 16, 32, 64), "model")
        self.waiting = Gauge("ragbias_waiting_requests", "Not computed yet.", ["model"], registry=registry)
        self.running = Gauge("ragbias_running_requests", "Being computed.", ["model"], registry=registry)

    def exposition(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)
