"""Where costs of operators, steps that were timed, and rates of the data path and of generation are kept between commands:
beside ``rates.json``, one JSON list per kind. Each entry says device, machine and dtype; entries of others stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeVar

from erniecore.api.command import store_text
from erniecore.api.files import read_json
from erniecore_planner.data_rates import DataRate, ServeRate
from erniecore_planner.operators import Costs, Timed
from erniecore_planner.rates import rates_file

#: timed steps of one machine that are kept; the oldest go first
KEPT = 24


class Entry(Protocol):
    """What every measurement says of its place."""

    @property
    def device(self) -> str: ...
    @property
    def machine(self) -> str: ...
    @property
    def dtype(self) -> str: ...


E = TypeVar("E", bound=Entry)


def read_entries(path: Path, make: Callable[[dict[str, Any]], E]) -> list[E]:
    """What has been measured. A file that is missing or of no use is an empty list: it can be measured again."""
    try:
        return [make(row) for row in read_json(path)]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def write_entries(path: Path, entries: list[Any]) -> None:
    """All of them. Raises ``CheckpointError`` where nothing can be written."""
    text = json.dumps([asdict(entry) for entry in entries], indent=1) + "\n"
    store_text(path, text, "storing a measurement")


def place(entry: Entry) -> tuple[str, str, str]:
    """What a measurement is of."""
    return entry.device, entry.machine, entry.dtype


def make_costs(row: dict[str, Any]) -> Costs:
    """Operator costs from their JSON values."""
    products = tuple((int(side), float(rate)) for side, rate in row["products"])
    attention = tuple((int(length), float(one), float(both)) for length, one, both in row["attention"])
    return Costs(**{**row, "products": products, "attention": attention})


#: classes of operators by their old names
_OLD_CLASSES = {"stream": "elementwise"}


def make_timed(row: dict[str, Any]) -> Timed:
    """From JSON, also from files that were written before version 0.2."""
    parts = {_OLD_CLASSES.get(name, name): seconds for name, seconds in row["parts"].items()}
    return Timed(**{**row, "parts": parts})


def store_costs(environ: Mapping[str, str], costs: Costs) -> Path:
    """In place of those of the same machine, whose timed steps mean nothing any more."""
    path, steps = costs_path(environ), steps_path(environ)
    kept = [old for old in read_entries(path, make_costs) if place(old) != place(costs)]
    write_entries(path, [*kept, costs])
    timed = read_entries(steps, make_timed)
    if timed:
        write_entries(steps, [old for old in timed if place(old) != place(costs)])
    return path


def store_timed(environ: Mapping[str, str], run: Timed) -> Path:
    """Beside others of the same machine; in place of one with the same label."""
    path = steps_path(environ)
    old = read_entries(path, make_timed)
    own = [r for r in old if place(r) == place(run) and r.label != run.label][-KEPT + 1 :]
    write_entries(path, [*(r for r in old if place(r) != place(run)), *own, run])
    return path


def costs_of_machine(environ: Mapping[str, str], device: str, dtype: str, machine: str) -> Costs | None:
    """Of this machine; ``machine`` empty: of any with this device, the newest."""
    found = [c for c in read_entries(costs_path(environ), make_costs) if (c.device, c.dtype) == (device, dtype)]
    return max((c for c in found if not machine or c.machine == machine), key=lambda c: c.day, default=None)


def timed_on(environ: Mapping[str, str], costs: Costs) -> list[Timed]:
    """Steps that say how far these costs are off."""
    runs = read_entries(steps_path(environ), make_timed)
    return [run for run in runs if place(run) == place(costs) and run.basis == costs.day]


def make_serve(row: dict[str, Any]) -> ServeRate:
    """Serving rates from their JSON values."""
    prefill = tuple((int(length), float(rate)) for length, rate in row["prefill"])
    decode = tuple((int(rows), int(length), *map(float, rest)) for rows, length, *rest in row["decode"])
    return ServeRate(**{**row, "prefill": prefill, "decode": decode})


def make_data(row: dict[str, Any]) -> DataRate:
    """Data rates from their JSON values."""
    return DataRate(**row)


def store_one(path: Path, make: Callable[[dict[str, Any]], E], entry: E) -> Path:
    """In place of the one of the same device, machine and dtype."""
    write_entries(path, [*(old for old in read_entries(path, make) if place(old) != place(entry)), entry])
    return path


def entry_of(path: Path, make: Callable[[dict[str, Any]], E], device: str, dtype: str, machine: str) -> E | None:
    """The one of this device, machine (empty: any) and dtype."""
    found = (e for e in read_entries(path, make) if (e.device, e.dtype) == (device, dtype))
    return next((e for e in found if not machine or e.machine == machine), None)


def loader_path(environ: Mapping[str, str]) -> Path:
    """Path of the file ``loader.json``."""
    return rates_file(environ).with_name("loader.json")


def serve_path(environ: Mapping[str, str]) -> Path:
    """Path of the file ``serve.json``."""
    return rates_file(environ).with_name("serve.json")


def costs_path(environ: Mapping[str, str]) -> Path:
    """Path of the file ``operators.json``."""
    return rates_file(environ).with_name("operators.json")


def steps_path(environ: Mapping[str, str]) -> Path:
    """Path of the file ``steps.json``."""
    return rates_file(environ).with_name("steps.json")
