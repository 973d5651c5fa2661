"""The data path of a run, timed from its files to its batches: read and encode, pack, collate. Trains nothing."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from erniecore.api.command import load_settings
from erniecore.api.measuring import data_path
from erniecore.api.planning import PlannedRun
from erniecore_planner.data_rates import DataRate
from erniecore_planner.estimate import estimate
from erniecore_planner.step_times import machine_of


@dataclass(frozen=True, slots=True)
class LoaderTimes:
    """``seconds`` of each part; ``rows``, ``tokens``, ``bytes`` of the data; ``step``: seconds of the batches of a step, and
    ``expected`` of the step itself, None where nothing was measured."""

    rate: DataRate
    seconds: dict[str, float]
    rows: int
    tokens: int
    bytes: int
    step: float
    expected: float | None


def measure_loader(file: Path | None, overrides: list[str], flags: Mapping[str, Any], steps: int) -> LoaderTimes:
    """Of the words of a run.

    Raises:
        UsageError: the data is a folder of tokens, which is read as it is. DataError: the data cannot be used.
    """
    with tempfile.TemporaryDirectory(prefix="ernie-bench-") as out:
        path = data_path(load_settings(file, [*overrides, f"run.out={out}/run", "data.cache=off"], flags))
        started = time.perf_counter()
        split = path.encode()
        encoded = time.perf_counter()
        loader = path.batches(split)
        fill = loader.sampler.fill_rate()
        packed = time.perf_counter()
        steps = min(steps, loader.sampler.steps_in_epoch(0))
        positions = sum(batch.input_ids.size for step in range(steps) for batch in loader.step(step))
        made = time.perf_counter() - packed
    spent = {"encode": encoded - started, "pack": packed - encoded, "batches": made}
    size, found = sum(int(content["bytes"]) for content in split.contents), estimate(path.run)
    rate = rate_of(path.run, split.dataset, size, spent, positions, fill)
    expected = found.step_seconds if found else None
    return LoaderTimes(rate, spent, num_rows(split.dataset), split.dataset.num_tokens, size, made / steps, expected)


def num_rows(dataset: Any) -> int:
    """Rows of the data up to the last that was kept."""
    return int(dataset.rows[-1]) + 1


def rate_of(run: PlannedRun, dataset: Any, size: int, spent: dict[str, float], positions: int, fill: float) -> DataRate:
    """What ``size`` bytes and ``positions`` of batches in so many seconds are."""
    return DataRate(
        device="cpu",
        machine=machine_of(run),
        dtype=run.names["method"],
        day=date.today().isoformat(),
        workers=run.data.workers,
        bytes_per_s=size / spent["encode"],
        rows_per_s=num_rows(dataset) / spent["encode"],
        tokens_per_s=dataset.num_tokens / spent["encode"],
        pack_tokens_per_s=dataset.num_tokens / max(spent["pack"], 1e-9),
        batch_tokens_per_s=positions / max(spent["batches"], 1e-9),
        token_bytes=size / dataset.num_tokens,
        sample=dataset.num_tokens / len(dataset),
        fill=fill,
    )
