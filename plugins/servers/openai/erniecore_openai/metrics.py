"""What ``/metrics`` tells Prometheus, under FastDeploy's names, so that its dashboards and alerts fit; what there is of each
model, adapters included, and of adapters at this moment is under vLLM's.

Nothing here holds text of prompts or completions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from erniecore_generation.engine.requests import EngineStats, Finished

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TIMES = {
    "time_to_first_token_seconds": "From a completion's arrival to its first token.",
    "time_per_output_token_seconds": "Time of each further token.",
    "e2e_request_latency_seconds": "From a completion's arrival to its end.",
    "request_queue_time_seconds": "Before a completion got a row.",
    "request_prefill_time_seconds": "From there to its first token.",
    "request_decode_time_seconds": "From its first token to its last.",
    "request_inference_time_seconds": "From the row to its last token.",
}


class Metrics:
    """Counters and histograms of one server."""

    def __init__(self, stats: Callable[[], EngineStats | None], adapters: int = 0) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Engine(stats, adapters))
        self._times = {
            name: Histogram(f"fastdeploy:{name}", text, buckets=_SECONDS, registry=self._registry)
            for name, text in _TIMES.items()
        }
        self._prompt = Counter("fastdeploy:prompt_tokens", "Tokens of prompts.", registry=self._registry)
        self._new = Counter("fastdeploy:generation_tokens", "Tokens of completions.", registry=self._registry)
        self._success = Counter(
            "fastdeploy:request_success", "Completions that ended.", ["finish_reason"], registry=self._registry
        )
        self._prompt_of = Counter("vllm:prompt_tokens", "Tokens of prompts.", ["model_name"], registry=self._registry)
        self._new_of = Counter(
            "vllm:generation_tokens", "Tokens of completions.", ["model_name"], registry=self._registry
        )
        self._success_of = Counter(
            "vllm:request_success",
            "Completions that ended.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self._times_of = {
            name: Histogram(f"vllm:{name}", _TIMES[name], ["model_name"], buckets=_SECONDS, registry=self._registry)
            for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds")
        }
        self._answers = Counter("ernie:http_responses", "Answers by status.", ["status"], registry=self._registry)

    def register(self, collector: Collector) -> None:
        """Let the page tell what ``collector`` knows as well."""
        self._registry.register(collector)

    def answered(self, status: int) -> None:
        """An answer has begun."""
        self._answers.labels(str(status)).inc()

    def finished(self, end: Finished, reason: str, model: str) -> None:
        """A completion of ``model`` has ended."""
        self._prompt_of.labels(model).inc(end.prompt_tokens)
        self._new_of.labels(model).inc(end.new_tokens)
        self._success_of.labels(model, reason).inc()
        self._prompt.inc(end.prompt_tokens)
        self._new.inc(end.new_tokens)
        self._success.labels(reason).inc()
        first, inference = end.queue_s + end.prefill_s, end.prefill_s + end.decode_s
        times = {
            "request_queue_time_seconds": end.queue_s,
            "request_prefill_time_seconds": end.prefill_s,
            "request_decode_time_seconds": end.decode_s,
            "request_inference_time_seconds": inference,
            "e2e_request_latency_seconds": end.queue_s + inference,
        }
        if end.new_tokens:
            times["time_to_first_token_seconds"] = first
        if end.new_tokens > 1:
            times["time_per_output_token_seconds"] = end.decode_s / (end.new_tokens - 1)
        for name, seconds in times.items():
            self._times[name].observe(seconds)
            if name in self._times_of:
                self._times_of[name].labels(model).observe(seconds)

    def text(self) -> bytes:
        """The page, in Prometheus' text format."""
        return generate_latest(self._registry)


class _Engine(Collector):
    """The engine at the moment of asking."""

    def __init__(self, stats: Callable[[], EngineStats | None], adapters: int) -> None:
        self._stats, self._adapters = stats, adapters

    def collect(self) -> Iterable[Metric]:
        """Gauges and counters of the engine; none while there is no engine."""
        stats = self._stats()
        if stats is None:
            return
        gauges = {
            "fastdeploy:num_requests_running": ("Completions that have a row.", stats.running),
            "fastdeploy:num_requests_waiting": ("Completions that wait for a row.", stats.waiting),
            "fastdeploy:hit_token_rate": (
                "Share of the tokens of prompts that were in the prefix cache.",
                stats.prefix_hits / stats.prefix_queries if stats.prefix_queries else 0.0,
            ),
            "ernie:rows": ("Completions that can be decoded together.", stats.rows),
            "ernie:prefix_cache_bytes": ("Memory of the prefix cache.", stats.prefix_bytes),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value)
        counters = {
            "ernie:engine_steps": ("Turns of the engine.", stats.steps),
            "ernie:requests_aborted": ("Completions that were cancelled.", stats.aborted),
            "ernie:requests_failed": ("Completions that ended with an error.", stats.failed),
            "ernie:draft_tokens": ("Tokens that speculative decoding proposed.", stats.draft_tokens),
            "ernie:accepted_tokens": ("Those of them that were accepted.", stats.accepted_tokens),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(name, text, value)
        if self._adapters:
            labels = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
            text = "Adapters with a row, and those that wait for one; the value is the time."
            told = GaugeMetricFamily("vllm:lora_requests_info", text, labels=labels)
            names = (",".join(stats.running_adapters), ",".join(stats.waiting_adapters))
            told.add_metric((str(self._adapters), *names), time.time())
            yield told
