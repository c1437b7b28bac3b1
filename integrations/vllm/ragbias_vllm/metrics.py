"""Counters of the connector, for vLLM's log and ``/metrics``."""

from __future__ import annotations

from collections import Counter
from typing import Any

import prometheus_client
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

DOCUMENTED = {
    "loaded_entries": "Stored prefixes and documents that were placed in prompts.",
    "loaded_tokens": "Tokens that were placed in prompts instead of being computed.",
    "loaded_bytes": "Bytes of keys and values that were placed in prompts.",
    "stored_entries": "Prefixes and documents that were computed and stored.",
    "stored_bytes": "Bytes of keys and values that were stored.",
}
REFUSED = "refused:"  # before the reason


class Counts(KVConnectorStats):
    """Counts since the last report. Keys are in ``DOCUMENTED``, or ``REFUSED`` with a reason."""

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
    """Prometheus counters of the same events, as ``vllm:ragbias_loaded_tokens_total`` and so on."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        counter, labels = self._counter_cls, self._labelnames
        self._counters = {
            name: counter(name=f"vllm:ragbias_{name}", documentation=text, labelnames=labels)
            for name, text in DOCUMENTED.items()
        }
        refusals = "Requests that failed because they cannot run, or because an entry is missing or damaged."
        self._refusals: prometheus_client.Counter = counter(
            name="vllm:ragbias_refusals", documentation=refusals, labelnames=[*labels, "reason"]
        )
        for values in self.per_engine_labelvalues.values():
            for each in self._counters.values():
                each.labels(*values)  # zero until the first event

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        values = self.per_engine_labelvalues[engine_idx]
        for name, count in transfer_stats_data.items():
            if name.startswith(REFUSED):
                self._refusals.labels(*values, name.removeprefix(REFUSED)).inc(count)
            else:
                self._counters[name].labels(*values).inc(count)
