"""Measured rates of devices, kept in files for all plans: floating-point operations per second of matrix products and of
training, by device, machine and dtype; latency and bandwidth between processes. Nothing here comes from a data sheet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from erniecore.api.command import store_text
from erniecore.api.files import cache_home, read_json


@dataclass(frozen=True, slots=True)
class Rate:
    """One measurement.

    Attributes:
        device: plugin name. machine: see :func:`identity`; figures of other machines are not used.
        dtype: of the operands. flops: operations per second of the best shape. shape: that shape, [m, k, n].
        day: when it was measured, ISO date.
    """

    device: str
    machine: str
    dtype: str
    flops: float
    shape: tuple[int, int, int]
    day: str


@dataclass(frozen=True, slots=True)
class LinkRate:
    """Collectives between ``processes`` processes of one machine: seconds per message, bytes per second. ``contention``: how
    much longer a process computes while all do."""

    device: str
    machine: str
    processes: int
    latency: float
    bandwidth: float
    day: str
    contention: float = 1.0


def training(dtype: str) -> str:
    """What the rate of whole training steps is filed under, beside that of products: ``Rate.dtype``."""
    return f"{dtype} training"


def identity(facts: Mapping[str, str]) -> str:
    """What a rate depends on, of ``Device.describe()``: processor and threads, or the accelerator's name. No host names."""
    wanted = ("processor", "threads", "name")
    return ", ".join(f"{key} {facts[key]}" for key in wanted if key in facts)


def rates_file(environ: Mapping[str, str]) -> Path:
    """``$XDG_CACHE_HOME/erniecore/rates.json``, by default below ``~/.cache``."""
    return cache_home(environ) / "erniecore" / "rates.json"


def read_rates(path: Path) -> list[Rate]:
    """What has been measured. A file that is missing or of no use is an empty list: it can be measured again."""
    try:
        rows = read_json(path)
        return [Rate(**{**row, "shape": tuple(row["shape"])}) for row in rows]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def store_rate(path: Path, rate: Rate) -> None:
    """Replace the rate of the same device, machine and dtype. Raises ``CheckpointError`` where nothing can be written."""
    kept = [old for old in read_rates(path) if key(old) != key(rate)]
    text = json.dumps([asdict(r) for r in sorted([*kept, rate], key=key)], indent=1) + "\n"
    store_text(path, text, "storing a measured rate")


def key(rate: Rate) -> tuple[str, str, str]:
    """What there is one rate of."""
    return rate.device, rate.machine, rate.dtype


def best_rate(rates: Iterable[Rate], device: str, dtype: str, machine: str = "") -> Rate | None:
    """The rate of this machine; ``machine`` empty: of any with this device, the newest."""
    found = [r for r in rates if (r.device, r.dtype) == (device, dtype) and (not machine or r.machine == machine)]
    return max(found, key=lambda r: r.day, default=None)


#: names in files of links that were measured before version 0.2
_OLD_NAMES = {"crowd": "contention"}


def read_links(path: Path) -> list[LinkRate]:
    """What has been measured between processes; like :func:`read_rates`."""
    try:
        rows = read_json(path)
        return [LinkRate(**{_OLD_NAMES.get(name, name): value for name, value in row.items()}) for row in rows]
    except (OSError, ValueError, TypeError, AttributeError):
        return []


def store_link(path: Path, link: LinkRate) -> None:
    """Replace that of the same device, machine and number. Raises ``CheckpointError`` where nothing can be written."""

    def place(row: LinkRate) -> tuple[str, str, int]:
        return row.device, row.machine, row.processes

    kept = [old for old in read_links(path) if place(old) != place(link)]
    text = json.dumps([asdict(row) for row in sorted([*kept, link], key=place)], indent=1) + "\n"
    store_text(path, text, "storing a measured rate")


def links_file(environ: Mapping[str, str]) -> Path:
    """The file of link rates, next to :func:`rates_file`."""
    return rates_file(environ).with_name("links.json")


#: [m, k, n] of the products that are timed: square ones, and a few thousand tokens through the matrices of real layers
SHAPES: Sequence[tuple[int, int, int]] = (
    (512, 512, 512),
    (1024, 1024, 1024),
    (1024, 1024, 3072),
    (2048, 2048, 2048),
    (1024, 3072, 1024),
)
#: and on accelerators
LARGE: Sequence[tuple[int, int, int]] = ((4096, 4096, 4096), (4096, 2560, 12288), (8192, 8192, 8192))
