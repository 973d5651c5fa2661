"""``python -m benchmarks.many_samples --samples 10000000``: memory and time of the data plan for that many samples.

The shards are written directly, with made-up tokens, so that nothing but the data plan is measured: opening and checking
the cache, holding out, order and packing of an epoch, and the batches of random steps.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from erniecore_sampler.steps import PackedBatchSampler, SamplerSettings
from erniecore_token_cache.shard_dataset import Part, ShardDataset
from erniecore_token_cache.shard_files import Shard, ShardWriter, open_shard

from benchmarks.large_data import memory
from erniecore.data.dataloader import DataLoader
from erniecore.data.dataset import ArrayDataset
from erniecore.data.splits import train_eval_split
from erniecore.types.samples import IGNORE

T = TypeVar("T")
_BLOCK, _BLOCKS = 512, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--mean", type=int, default=64, help="tokens per sample; 8 bytes each on disk")
    parser.add_argument("--dir", type=Path, default=None, help="where the shards are written")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as directory:
        count = max(1, args.samples // (_BLOCK * _BLOCKS))
        paths = [write(Path(directory) / f"shard-{i:05d}.tokens", i, args.mean) for i in range(count)]
        print(json.dumps({"phase": "before", **mib()}), flush=True)
        shards = phase("open and check", lambda: [open_shard(path) for path in paths])
        store = phase(
            "index", lambda: ShardDataset([Part(s, 0, i * _BLOCK * _BLOCKS) for i, s in enumerate(shards)], ["f"])
        )
        phase("fingerprint", store.fingerprint)
        phase("ids in range", lambda: store.foreign_id(60_000))
        train, _ = phase("split", lambda: train_eval_split(store, 0.01, 1))
        sampler = PackedBatchSampler(train, SamplerSettings(batch_size=8, seed=1))
        loader = DataLoader(train, sampler, pad_id=0)
        steps = phase("order and packing", lambda: sampler.steps_in_epoch(0))
        phase("fill rate", lambda: sampler.fill_rate(0))
        chosen = np.random.default_rng(0).integers(0, steps, 200).tolist()
        phase("200 random steps", lambda: [len(loader.step(i)) for i in chosen])
        total = sum(s.bytes for s in shards)
        print(
            json.dumps({"samples": len(store), "tokens": store.num_tokens, "mib_on_disk": total >> 20, "steps": steps})
        )


def phase(name: str, work: Callable[[], T]) -> T:
    """Do it, and say how long it took and what the process holds afterwards."""
    started = time.perf_counter()
    result = work()
    print(json.dumps({"phase": name, "seconds": round(time.perf_counter() - started, 2), **mib()}), flush=True)
    return result


def mib() -> dict[str, int]:
    """Memory of this process now and at its highest."""
    import os
    import resource

    anonymous, resident = memory(os.getpid())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return {"anonymous_mib": round(anonymous), "resident_mib": round(resident), "peak_resident_mib": peak}


def write(path: Path, seed: int, mean: int) -> Path:
    """A shard of 64 blocks of 512 samples."""
    rng = np.random.default_rng(seed)
    writer = ShardWriter(path)
    for block in range(_BLOCKS):
        lengths = rng.integers(mean // 4, mean * 7 // 4, _BLOCK)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        ids = rng.integers(0, 60_000, int(starts[-1]), dtype=np.int32)
        rows = np.arange(_BLOCK) + block * _BLOCK
        labels = np.where(ids % 2, ids, IGNORE).astype(np.int32)
        lines = rows.astype(np.int32)
        writer.add(ArrayDataset(starts, ids, labels, None, None, rows, lines, np.zeros(_BLOCK, np.int32), ("f",)))
    made: Shard = writer.finish({})
    return made.path


if __name__ == "__main__":
    main()
