"""Curves of a run, thinned while its events are read: so many buckets of steps, each with its smallest and largest value.

A million steps take as much memory as a thousand. When the buckets are full, pairs of them are joined and each covers twice as
many steps; no peak is lost. A file is read on in pieces, where the last look ended.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

from erniecore.api.events import metrics
from erniecore.api.runs import EVENTS_NAME

#: buckets of a run; runs that are kept; bytes of one piece; seconds that one request reads
BUCKETS, _RUNS, _PIECE, _SECONDS = 1500, 16, 1 << 20, 0.5
_METRICS = 40
_LOWEST, _HIGHEST, _LOW_STEP, _HIGH_STEP = range(4)


class _Bucket:
    """Some steps: tokens and seconds since the start at the last of them, and of each metric the extremes with their steps."""

    __slots__ = ("metrics", "seconds", "step", "tokens")

    def __init__(self, step: int, tokens: float, seconds: float) -> None:
        self.step, self.tokens, self.seconds = step, tokens, seconds
        self.metrics: dict[str, list[float]] = {}

    def add(self, name: str, step: int, value: float) -> None:
        have = self.metrics.get(name)
        if have is None:
            self.metrics[name] = [value, value, step, step]
        elif value < have[_LOWEST]:
            have[_LOWEST], have[_LOW_STEP] = value, step
        elif value > have[_HIGHEST]:
            have[_HIGHEST], have[_HIGH_STEP] = value, step

    def join(self, later: _Bucket) -> None:
        self.step, self.tokens, self.seconds = later.step, later.tokens, later.seconds
        for name, (low, high, low_step, high_step) in later.metrics.items():
            self.add(name, int(low_step), low)
            self.add(name, int(high_step), high)


class Curves:
    """The curves of one run up to ``offset`` bytes of its events.

    Attributes:
        offset: bytes that were read; the end of a line.
        evals: metric -> (step, value) of the evaluations, the last of each step.
        moments: events beside the steps that a reader wants to see in the curves: checkpoints, warnings, starts.
    """

    def __init__(self, path: Path) -> None:
        self._path = path / EVENTS_NAME
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self.offset, self._width = 0, 1
        self._buckets: OrderedDict[int, _Bucket] = OrderedDict()
        self._last = self._tokens = self._seconds = 0.0
        self.evals: dict[str, dict[int, float]] = {}
        self.moments: list[dict[str, Any]] = []

    def read(self, seconds: float = _SECONDS) -> float:
        """Read on, at most for so long; the share of the file that was read."""
        end = time.monotonic() + seconds
        with self._lock:
            try:
                with self._path.open("rb") as file:
                    size = file.seek(0, 2)
                    if size < self.offset:  # another file
                        self._clear()
                    file.seek(self.offset)
                    while time.monotonic() < end and (piece := file.read(_PIECE)):
                        whole = piece.rfind(b"\n") + 1
                        if not whole:
                            break
                        for line in piece[:whole].split(b"\n"):
                            if line:
                                self._add(line)
                        self.offset += whole
                        file.seek(self.offset)
                    return self.offset / size if size else 1.0
            except FileNotFoundError:
                return 1.0

    def points(self) -> dict[str, Any]:
        """``metrics``: name -> ``x`` (steps), ``y``, and since the start ``tokens``, ``seconds``; ``evals``: ``x``, ``y``."""
        with self._lock:
            metrics: dict[str, dict[str, list[float]]] = {}
            for bucket in self._buckets.values():
                for name, (low, high, low_step, high_step) in bucket.metrics.items():
                    curve = metrics.setdefault(name, {"x": [], "y": [], "tokens": [], "seconds": []})
                    pairs = sorted({(low_step, low), (high_step, high)})
                    for step, value in pairs:
                        curve["x"].append(step)
                        curve["y"].append(value)
                        curve["tokens"].append(bucket.tokens)
                        curve["seconds"].append(round(bucket.seconds, 3))
            evals = {name: {"x": [*sorted(v)], "y": [v[s] for s in sorted(v)]} for name, v in self.evals.items()}
            return {"metrics": metrics, "evals": evals, "moments": self.moments[-200:], "offset": self.offset}

    def _add(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            kind = event.get("event")
        except (ValueError, AttributeError, RecursionError):
            return
        step = event.get("step")
        if kind == "step" and isinstance(step, int):
            self._step(step, event)
        elif kind == "eval" and isinstance(step, int):
            for name, value in _numbers(event):
                self.evals.setdefault(name, {})[step] = value
        elif kind in ("checkpoint", "warning", "run_start", "run_end"):
            self.moments.append({"event": kind, "step": step, "time": event.get("time")})

    def _step(self, step: int, event: dict[str, Any]) -> None:
        if step <= self._last:  # resumed: what follows replaces what was lost
            first = step // self._width
            for index in [i for i in self._buckets if i >= first and (i > first or self._width == 1)]:
                del self._buckets[index]
            before = next(reversed(self._buckets.values()), None)
            self._tokens, self._seconds = (before.tokens, before.seconds) if before else (0.0, 0.0)
        self._last = step
        self._tokens += _plain(event.get("tokens"))
        self._seconds += _plain(event.get("seconds"))
        bucket = self._buckets.get(step // self._width)
        if bucket is None:
            bucket = self._buckets[step // self._width] = _Bucket(step, self._tokens, self._seconds)
        bucket.step, bucket.tokens, bucket.seconds = step, self._tokens, self._seconds
        for name, value in _numbers(event):
            bucket.add(name, step, value)
        if len(self._buckets) > BUCKETS:
            self._widen()

    def _widen(self) -> None:
        old, self._buckets = self._buckets, OrderedDict()
        self._width *= 2
        for index, bucket in old.items():
            have = self._buckets.setdefault(index // 2, bucket)
            if have is not bucket:
                have.join(bucket)


class CurveStore:
    """The curves of the runs that were looked at last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[Path, Curves] = OrderedDict()

    def of(self, path: Path) -> Curves:
        """The curves of a run directory; not read on."""
        with self._lock:
            curves = self._runs.setdefault(path, Curves(path))
            self._runs.move_to_end(path)
            while len(self._runs) > _RUNS:
                self._runs.popitem(last=False)
            return curves


def _numbers(event: dict[str, Any]) -> list[tuple[str, float]]:
    return list(metrics(event).items())[:_METRICS]


def _plain(value: object) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0
