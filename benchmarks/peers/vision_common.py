"""What both runners of ``benchmarks.vision`` share: arguments, threads, the arrays, the clock and the line that each prints.
Standard library and numpy only."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from common import Clock, peak_rss_mb

LEARNING_RATE, WEIGHT_DECAY, BETAS, MAX_NORM, RANK, ALPHA = 1e-4, 0.01, (0.9, 0.95), 1.0, 8, 16


def parse_arguments() -> argparse.Namespace:
    """Sets the number of threads: call it before numpy, torch or paddle are imported."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path, help="a model directory with batches.npz")
    parser.add_argument("--method", choices=["sft", "lora"], default="sft")
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(args.threads)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return args


def read_batches(directory: Path) -> list[dict[str, Any]]:
    """One dictionary of arrays per step."""
    import numpy as np

    with np.load(directory / "batches.npz") as file:
        arrays = {name: file[name] for name in file.files}
    return [{name: array[i] for name, array in arrays.items()} for i in range(len(arrays["input_ids"]))]


def rss_mb() -> float:
    """Resident memory of this process now, MB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def emit(clock: Clock, start_mb: float, trained: int, **facts: Any) -> None:
    """The last line of standard output. ``start_mb``: memory before the model was read."""
    result = {
        "wall": [round(seconds, 4) for seconds in clock.wall],
        "cpu": [round(seconds, 4) for seconds in clock.cpu],
        "losses": [round(loss, 7) for loss in clock.losses],
        "peak_mb": round(peak_rss_mb(), 1),
        "start_mb": round(start_mb, 1),
        "trained": trained,
        **facts,
    }
    print(json.dumps(result), flush=True)
