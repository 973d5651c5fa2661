"""The data path of a run, timed from its files to its batches: read and encode, pack, collate. Trains nothing."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.errors import UsageError
from erniecore.planning.data_rates import DataRate
from erniecore.planning.rates import identity

if TYPE_CHECKING:
    from erniecore.data.store import SampleStore
    from erniecore.engine.preparation.prepare import Prepared


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
    from erniecore.config import compose
    from erniecore.data.splits import Loader
    from erniecore.engine.preparation.outlook import outlook
    from erniecore.engine.preparation.prepare import prepare
    from erniecore.engine.training.corpus_feed import names_token_files
    from erniecore.engine.training.feed import build_plans
    from erniecore.engine.training.session import build_tokenizer

    with tempfile.TemporaryDirectory(prefix="ernie-bench-") as out:
        words = [*overrides, f"run.out={out}/run", "data.cache=off"]
        ready = prepare(compose.load(file, words, flags))
        settings = ready.settings
        if names_token_files(settings.data):
            raise UsageError("token files are mapped as they are; there is nothing to encode", where="data.train")
        tokenizer = build_tokenizer(ready)
        encoder = ready.host.hook.ernie_build_encoder(
            config=settings.method, tokenizer=tokenizer, max_length=settings.data.max_seq_len
        )
        loader = Loader(settings.data, settings.formats, encoder)
        started = time.perf_counter()
        splits = loader.load(settings.run.seed)
        encoded = time.perf_counter()
        plan, _ = build_plans(ready, splits, tokenizer.pad_id)
        fill = plan.fill_rate()
        packed = time.perf_counter()
        steps = min(steps, plan.steps_in_epoch(0))
        positions = sum(batch.input_ids.size for step in range(steps) for batch in plan.step(step))
        made = time.perf_counter() - packed
    spent = {"encode": encoded - started, "pack": packed - encoded, "batches": made}
    size, found = sum(int(content["bytes"]) for content in splits.contents), outlook(ready)
    rate = rate_of(ready, splits.train, size, spent, positions, fill)
    expected = found.expected if found else None
    return LoaderTimes(rate, spent, num_rows(splits.train), splits.train.num_tokens, size, made / steps, expected)


def num_rows(store: SampleStore) -> int:
    """Rows of the data up to the last that was kept."""
    return int(store.rows[-1]) + 1


def rate_of(
    ready: Prepared, store: SampleStore, size: int, spent: dict[str, float], positions: int, fill: float
) -> DataRate:
    """What ``size`` bytes and ``positions`` of batches in so many seconds are."""
    return DataRate(
        device="cpu",
        machine=identity(ready.device.describe()) if ready.device.name == "cpu" else "",
        dtype=ready.names["method"],
        day=date.today().isoformat(),
        workers=ready.settings.data.workers,
        bytes_per_s=size / spent["encode"],
        rows_per_s=num_rows(store) / spent["encode"],
        tokens_per_s=store.num_tokens / spent["encode"],
        pack_tokens_per_s=store.num_tokens / max(spent["pack"], 1e-9),
        batch_tokens_per_s=positions / max(spent["batches"], 1e-9),
        token_bytes=size / store.num_tokens,
        sample=store.num_tokens / len(store),
        fill=fill,
    )
