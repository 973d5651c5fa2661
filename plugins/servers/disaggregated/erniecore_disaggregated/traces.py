"""Traces of requests for the simulator: recorded ones from JSON lines, and made-up ones from published figures.

The figures: medians of prompts and completions in Microsoft's traces of two services in production (Patel et al., *Splitwise*,
2024, arXiv:2311.18677, section III): coding 1,500 and 13 tokens, conversation 1,020 and 129. Lengths are log-normal around the
medians, which have the long tails of the paper's figure 3; arrivals are a Poisson process whose rate may change.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from erniecore.api import DataError
from erniecore_disaggregated.simulation import Arrival, ServiceTimes

#: (median tokens of a prompt, spread of its logarithm), and the same of a completion
CODING = ((1500, 0.6), (13, 0.8))
CONVERSATION = ((1020, 0.9), (129, 0.7))
#: prompts as long as a document, of which a summary is made; and short questions with long reasoning
SUMMARY = ((3000, 0.4), (60, 0.5))
REASONING = ((200, 0.6), (700, 0.5))
Shape = tuple[tuple[int, float], tuple[int, float]]


def sampled(
    shape: Callable[[float], Shape], rate: Callable[[float], float], seconds: float, *, seed: int, longest: int = 8192
) -> list[Arrival]:
    """Arrivals of a Poisson process with ``rate(at)`` requests per second, by thinning; ``shape(at)`` has the lengths."""
    numbers = np.random.default_rng(seed)
    most = max(rate(float(at)) for at in np.linspace(0, seconds, 1000))
    found, at = [], 0.0
    while (at := at + float(numbers.exponential(1 / most))) < seconds:
        if numbers.random() * most <= rate(at):
            prompt, completion = (
                int(np.clip(round(median * np.exp(spread * numbers.standard_normal())), 1, longest))
                for median, spread in shape(at)
            )
            found.append(Arrival(at, prompt, completion))
    return found


def read_trace(file: Path) -> list[Arrival]:
    """A recorded trace: JSON lines with ``at`` (seconds), ``prompt`` and ``completion`` (tokens), and ``prefix`` and ``shared``
    where prompts have a common beginning. Raises ``DataError`` for a line that is none."""
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found.append(Arrival(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise DataError("no request of a trace", where=f"{file}:{number}", found=str(error)) from None
    return sorted(found, key=lambda arrival: arrival.at)


def work(shape: Shape, times: ServiceTimes, rows: int, *, seed: int = 0) -> tuple[float, float]:
    """Mean seconds that a request of a shape takes of a process for prompts, and of one that decodes ``rows`` at a time."""
    arrivals = sampled(lambda at: shape, lambda at: 1.0, 2000.0, seed=seed)
    prompts = float(np.mean([arrival.prompt for arrival in arrivals]))
    tokens = float(np.mean([arrival.completion for arrival in arrivals]))
    step = (times.step_base + times.step_row * rows) / rows
    return times.prefill_base + times.prefill_token * prompts, step * tokens


def made_up(
    name: str, times: ServiceTimes, processes: int, *, rows: int = 8, load: float = 0.6, seed: int = 0
) -> list[Arrival]:
    """One of the traces of :data:`TRACES`, as fast as these processes can just do it: ``load`` is the share of their time that
    the work of a phase takes."""
    phases = TRACES[name]
    seconds = PHASE_SECONDS * len(phases)

    def phase(at: float) -> tuple[Shape, float]:
        return phases[min(int(at / PHASE_SECONDS), len(phases) - 1)]

    rates = {shape: load * processes / sum(work(shape, times, rows)) for shape, _ in phases}
    return sampled(lambda at: phase(at)[0], lambda at: rates[phase(at)[0]] * phase(at)[1], seconds, seed=seed)


#: seconds of each phase of a trace
PHASE_SECONDS = 240.0
#: name -> phases: (lengths, share of the load)
TRACES: dict[str, list[tuple[Shape, float]]] = {
    # a service whose users change over the day: documents in the morning, long reasoning in the afternoon
    "shift": [(SUMMARY, 1.0), (SUMMARY, 1.0), (REASONING, 1.0), (REASONING, 1.0)],
    # conversations, and now and then a batch of documents
    "bursts": [(REASONING, 0.9), (SUMMARY, 1.1), (REASONING, 0.9), (SUMMARY, 1.1), (REASONING, 0.9)],
    # completion of code by day, agents that reason by night
    "nights": [(CODING, 1.0), (REASONING, 1.0), (CODING, 1.0), (REASONING, 1.0)],
    # the two services of the paper, one after the other: on processors, prompts are most of the work of both
    "services": [(CODING, 1.0), (CONVERSATION, 1.0), (CODING, 1.0), (CONVERSATION, 1.0)],
    # one mix that never changes
    "steady": [(CONVERSATION, 1.0)] * 4,
}
