"""Curves of a run, thinned while its events are read: so many buckets of steps, each with its smallest and largest value.

A million steps take as much memory as a thousand. When the buckets are full, pairs of them are joined and each covers twice as
many steps; no peak is lost. A file is read on in pieces, where the last look ended. What a million steps became can be stored and
taken up again (:mod:`erniecore_webui.curve_store`).
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from erniecore.api.events import metrics
from erniecore.api.runs import EVENTS_NAME

#: buckets of a run; bytes of one piece, small so that other threads get their turn; seconds that one request reads
BUCKETS, _PIECE, _SECONDS = 1500, 1 << 18, 0.1
#: metrics of one event and of a run, evaluations of a metric, and events beside the steps that are kept
_METRICS, _NAMES, _EVALS, _MOMENTS = 40, 200, 4000, 200
#: bytes at the begin of the events and before the end of what was read, by which a file is known again
_KNOWN = 4096
_FORMAT = 1
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
        evals: metric -> (step, value) of the evaluations, the last of each step; every second one where there are too many.
        moments: the last events beside the steps that a reader wants to see in the curves: checkpoints, warnings, starts.
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
        self.moments: deque[dict[str, Any]] = deque(maxlen=_MOMENTS)
        self._names: set[str] = set()

    def read(self, seconds: float = _SECONDS) -> float:
        """Read on, at most for so long; the share of the file that was read. A last line without an end counts as read."""
        end = time.monotonic() + seconds
        with self._lock, suppress(FileNotFoundError), self._path.open("rb") as file:
            size = file.seek(0, 2)
            if size < self.offset:  # another file
                self._clear()
            file.seek(self.offset)
            while time.monotonic() < end:
                piece = file.read(_PIECE)
                whole = piece.rfind(b"\n") + 1
                if not whole and not (len(piece) == _PIECE and (whole := _line_end(file, _PIECE))):
                    return 1.0
                for event in _events(piece[:whole]) if whole <= _PIECE else ():  # no event is as long as a piece
                    self._add(event)
                self.offset += whole
                file.seek(self.offset)
            return self.offset / size if size else 1.0
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
            return {"metrics": metrics, "evals": evals, "moments": list(self.moments), "offset": self.offset}

    def stored(self) -> dict[str, Any] | None:
        """Everything that was read, as JSON; None where the file cannot be known again."""
        with self._lock:
            mark = self._mark(self.offset)
            if mark is None:
                return None
            buckets = [[i, b.step, b.tokens, b.seconds, dict(b.metrics)] for i, b in self._buckets.items()]
            counts = [self._width, self._last, self._tokens, self._seconds]
            evals = {name: list(values.items()) for name, values in self.evals.items()}
            return {"format": _FORMAT, "offset": self.offset, "mark": mark, "counts": counts, "buckets": buckets,
                    "evals": evals, "moments": list(self.moments)}  # fmt: skip

    def take_up(self, stored: dict[str, Any]) -> bool:
        """Go on from what was stored. False, and nothing is changed, where that is of another file or another format."""
        try:
            offset = stored["offset"]
            if stored["format"] != _FORMAT or not stored["mark"] or self._mark(offset) != stored["mark"]:
                return False
            buckets = OrderedDict()
            for index, step, tokens, seconds, values in stored["buckets"]:
                buckets[index] = bucket = _Bucket(step, tokens, seconds)
                bucket.metrics = values
            evals = {name: dict(values) for name, values in stored["evals"].items()}
            width, last, total, took = stored["counts"]
            moments = deque(stored["moments"], maxlen=_MOMENTS)
        except (KeyError, TypeError, ValueError, AttributeError):
            return False
        with self._lock:
            self.offset, self._width, self._last, self._tokens, self._seconds = offset, width, last, total, took
            self._buckets, self.evals, self.moments = buckets, evals, moments
            self._names = {name for bucket in buckets.values() for name in bucket.metrics}
        return True

    def _mark(self, offset: int) -> str | None:
        """A digest of the file's begin and of what lies before ``offset``; None where it is shorter."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < offset:
                    return None
                file.seek(0)
                head = file.read(min(_KNOWN, offset))
                file.seek(max(0, offset - _KNOWN))
                return hashlib.blake2b(head + file.read(min(_KNOWN, offset)), digest_size=16).hexdigest()
        except OSError:
            return None

    def _add(self, event: dict[str, Any]) -> None:
        kind, step = event.get("event"), event.get("step")
        if kind == "step" and isinstance(step, int):
            self._step(step, event)
        elif kind == "eval" and isinstance(step, int):
            for name, value in self._numbers(event):
                known = self.evals.setdefault(name, {})
                known[step] = value
                if len(known) > _EVALS:
                    self.evals[name] = {at: known[at] for at in sorted(known)[::2]}
        elif kind in ("checkpoint", "warning", "run_start", "run_end"):
            self.moments.append({"event": kind, "step": step, "time": event.get("time")})

    def _numbers(self, event: dict[str, Any]) -> list[tuple[str, float]]:
        """Its metrics; a run that calls them anew at each step does not fill the memory."""
        found = list(metrics(event).items())[:_METRICS]
        new = [name for name, _ in found if name not in self._names]
        if new:
            self._names.update(new[: _NAMES - len(self._names)])
            found = [(name, value) for name, value in found if name in self._names]
        return found

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
        for name, value in self._numbers(event):
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


def _line_end(file: BinaryIO, read: int) -> int:
    """Bytes of a line, of which ``read`` were read; 0: it has no end yet."""
    while piece := file.read(_PIECE):
        if (at := piece.find(b"\n")) >= 0:
            return read + at + 1
        read += len(piece)
    return 0


def _events(lines: bytes) -> Iterable[dict[str, Any]]:
    """The events in whole lines; lines that are none are left out."""
    rows = [line for line in lines.split(b"\n") if line]
    try:
        found = json.loads(b"[" + b",".join(rows) + b"]")  # one call for thousands of lines
    except (ValueError, RecursionError):
        found = [event for event in map(_event, rows) if event is not None]
    return (event for event in found if isinstance(event, dict))


def _event(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _plain(value: object) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0
