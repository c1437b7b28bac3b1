"""The connector's counters in vLLM's log and ``/metrics``."""

from __future__ import annotations

from collections import Counter
from typing import Any

import prometheus_client
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

DESCRIPTIONS = {
    "loaded_entries": "Stored prefixes and documents that were loaded into prompts.",
    "loaded_tokens": "Tokens that were loaded instead of computed.",
    "loaded_bytes": "Bytes of keys and values that were loaded.",
    "stored_entries": "Prefixes and documents that were computed and stored.",
    "stored_bytes": "Bytes of keys and values that were stored.",
}
REFUSAL = "refused:"  # prefix of counts of refused requests; the reason follows


class Counts(KVConnectorStats):
    """Counts since the last report. Keys are those of ``DESCRIPTIONS``, or ``REFUSAL`` followed by a reason."""

    data: dict[str, int]

    def add(self, **counts: int) -> None:
        self.data = dict(Counter(self.data) + Counter(counts))

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> Counts:
        self.add(**other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not self.data


class PrometheusCounts(KVConnectorPromMetrics):
    """Prometheus counters, such as ``vllm:ragbias_loaded_tokens_total``, that add up ``Counts``."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        counter, labels = self._counter_cls, self._labelnames
        self._counters = {
            name: counter(name=f"vllm:ragbias_{name}", documentation=text, labelnames=labels)
            for name, text in DESCRIPTIONS.items()
        }
        refusals = "Requests that failed because they cannot run, or because an entry is missing or damaged."
        self._refusals: prometheus_client.Counter = counter(
            name="vllm:ragbias_refusals", documentation=refusals, labelnames=[*labels, "reason"]
        )
        for values in self.per_engine_labelvalues.values():
            for labelled in self._counters.values():
                labelled.labels(*values)  # makes ``/metrics`` show zero before the first event

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        values = self.per_engine_labelvalues[engine_idx]
        for name, count in transfer_stats_data.items():
            if name.startswith(REFUSAL):
                self._refusals.labels(*values, name.removeprefix(REFUSAL)).inc(count)
            else:
                self._counters[name].labels(*values).inc(count)
