"""What ``/metrics`` tells of the processes, beside what the server ``openai`` tells: under vLLM's and FastDeploy's names where
they have one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from erniecore_disaggregated.router import Router

_SECONDS = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_BYTES = tuple(float(1 << power) for power in range(10, 36, 2))


class ClusterMetrics(Collector):
    """The processes at the moment of asking, and hand-offs since the start."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._seconds = Histogram(
            "vllm:nixl_xfer_time_seconds",
            "From the first byte of a hand-off to its end.",
            buckets=_SECONDS,
            registry=None,
        )
        self._bytes = Histogram(
            "vllm:nixl_bytes_transferred", "Bytes of keys and values of a hand-off.", buckets=_BYTES, registry=None
        )

    def collect(self) -> Iterable[Metric]:
        """Everything about processes, roles and hand-offs."""
        router = self._router
        with router.cluster.lock:
            transfers, router.tally.transfers = router.tally.transfers, []
            workers, counters = list(self._workers()), self._counters()
        for size, seconds in transfers:
            self._seconds.observe(seconds)
            self._bytes.observe(size)
        yield from self._seconds.collect()
        yield from self._bytes.collect()
        yield from workers
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(name, text, value)
        for name, (text, value) in {
            "ernie:ttft_pressure": ("Time to the first token over its target.", router.controller.ttft_pressure),
            "ernie:tpot_pressure": ("Time per further token over its target.", router.controller.tpot_pressure),
        }.items():
            yield GaugeMetricFamily(name, text, value)

    def _workers(self) -> Iterable[Metric]:
        labels = ("worker", "role")
        found = {
            "ernie:worker_up": "Whether a process takes work.",
            "ernie:worker_epoch": "Of the last change of a process's role.",
            "ernie:worker_queued_tokens": "Tokens of prompts that a process has to compute.",
            "ernie:worker_requests": "Requests that a process has a part of.",
            "ernie:worker_reserved_bytes": "Keys and values that are on their way to a process.",
        }
        gauges = [GaugeMetricFamily(name, text, labels=labels) for name, text in found.items()]
        for member in self._router.cluster.members.values():
            state, told = member.state, member.told
            values = (
                state.status == "open", state.epoch, state.queued_tokens, len(member.calls), told.get("reserved", 0)
            )  # fmt: skip
            for gauge, value in zip(gauges, values, strict=True):
                gauge.add_metric((state.name, state.role), float(value))
        switches = CounterMetricFamily("ernie:role_switches", "Changes of roles by outcome.", labels=("outcome",))
        for outcome, count in self._router.cluster.switches.items():
            switches.add_metric((outcome,), count)
        return [*gauges, switches]

    def _counters(self) -> dict[str, tuple[str, float]]:
        tally, cluster = self._router.tally, self._router.cluster
        failed = "Hand-offs that failed; their requests begin again."
        return {
            "vllm:nixl_num_failed_transfers": (failed, tally.undelivered),
            "vllm:nixl_num_kv_expired_reqs": ("Hand-offs without news that were freed.", cluster.expired),
            "fastdeploy:send_cache_failed_num": (failed, tally.undelivered),
            "ernie:requests_retried": ("Completions that began again elsewhere.", tally.retried),
            "ernie:stale_messages": ("Messages of tries or epochs that were over.", tally.stale),
            "ernie:worker_restarts": ("Processes that were started again.", cluster.restarts),
        }
