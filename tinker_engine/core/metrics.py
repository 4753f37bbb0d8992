"""What `/metrics` says: what waits, what is in memory, what has been done and how long it took."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from tinker_engine.core.engine import Engine

PREFIX = "tinker_engine_"

_COUNTERS = {
    "trained_tokens": "Tokens that went through a forward or backward pass of training",
    "training_operations": "Training operations carried out, replays included",
    "training_seconds": "Seconds the compute process spent training",
    "sampled_tokens": "Tokens sampled",
    "prompt_tokens": "Prompt tokens computed, cache hits excluded",
    "sampling_seconds": "Seconds the compute process spent sampling",
    "decode_steps": "Decode steps",
    "decode_rows": "Rows over all decode steps; divided by decode_steps, the mean batch",
}
_GAUGES = {
    "rows": "Samples being decoded now",
    "samples_waiting": "Sampling requests that wait in the compute process",
    "cache_use": "Share of the key/value cache in use",
    "runs": "Training runs that are open",
    "runs_in_memory": "Training runs in memory; the others are moved out while they idle",
    "snapshots_in_memory": "Sampler weights in memory",
}


class Metrics(Collector):
    def __init__(self, engine: "Engine"):
        self._engine = engine
        self._registry = CollectorRegistry()
        self._answers = Histogram(
            f"{PREFIX}answer_seconds",
            "Seconds from acceptance to answer",
            ["kind", "status"],
            buckets=(0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000),
            registry=self._registry,
        )
        self._registry.register(self)

    def answered(self, kind: str, status: str, seconds: float) -> None:
        self._answers.labels(kind, status).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        engine = self._engine
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(PREFIX + name, text, engine.stats.get(name, 0.0))
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(PREFIX + name, text, engine.stats.get(name, 0.0))
        yield GaugeMetricFamily(
            f"{PREFIX}training_queue", "Training requests not answered", engine.training.depth
        )
        yield GaugeMetricFamily(
            f"{PREFIX}sampling_queue", "Sampling requests not answered", engine.sampling.depth
        )
        yield CounterMetricFamily(f"{PREFIX}compute_restarts", "Replaced compute processes", engine.restarts)
