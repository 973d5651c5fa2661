"""The machines of a plan: kinds of accelerators, how many sit in a machine, what links them. From flags or from a cluster
file. Data only; nothing here knows what is trained.

A cluster file (YAML or JSON) lists machines in the order in which ranks fill them::

    machines:
      - {count: 4, accelerators: 8, accelerator: A100, memory: 80, tflops: 312, link: 250, host_memory: 1000, price: 2.0}
      - {count: 2, accelerators: 8, accelerator: L40S, memory: 48, tflops: 362, link: 25}
    network: 25

``memory`` and ``host_memory`` in GB, ``tflops`` of dense products in the run's precision, ``bandwidth`` of the accelerator's
memory, ``link`` (inside a machine) and ``network`` (between machines, per accelerator) in GB/s, ``price`` per accelerator
and hour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from erniecore.api import UsageError
from erniecore.api.command import did_you_mean

GB = 1_000_000_000
#: seconds that a message takes beside its bytes: inside a machine, between machines
LATENCY, LATENCY_FAR = 10e-6, 30e-6
#: bytes per second of links and of the way to the host's memory where nobody said: PCIe 4.0 x16 and 200 Gbit/s Ethernet
LINK, NETWORK, HOST_LINK = 25.0 * GB, 25.0 * GB, 20.0 * GB
#: share of the published peak that products are taken to reach where nothing was measured
ASSUMED_SHARE = 0.45


@dataclass(frozen=True, slots=True)
class Machines:
    """Machines that are alike.

    Attributes:
        count: of machines; accelerators: in each. accelerator: name. memory: bytes of an accelerator.
        flops: per second that products reach.
        bandwidth: bytes per second of the accelerator's memory; 0: unknown. link: between accelerators of a machine.
        host_memory: bytes of a machine; 0: nothing is known, and nothing may be kept there. price: per accelerator and hour.
        latency: seconds of a message between its accelerators.
    """

    count: int
    accelerators: int
    accelerator: str
    memory: int
    flops: float
    bandwidth: float = 0.0
    link: float = LINK
    host_memory: int = 0
    price: float = 1.0
    latency: float = LATENCY


@dataclass(frozen=True, slots=True, eq=False)  # clusters are keys of caches; comparing machines would take the time
class Cluster:
    """All machines in the order of ranks, and the network between them, bytes per second and accelerator."""

    machines: tuple[Machines, ...]
    network: float = NETWORK

    @property
    def size(self) -> int:
        """Number of accelerators in total."""
        return sum(group.count * group.accelerators for group in self.machines)

    @property
    def equally_fast(self) -> bool:
        """Whether all accelerators are."""
        return len({group.flops for group in self.machines}) <= 1

    @property
    def per_machine(self) -> int:
        """Accelerators of the smallest machine: groups of ranks up to this size need no network."""
        return min(group.accelerators for group in self.machines)

    def first(self, accelerators: int) -> Cluster:
        """The first ``accelerators`` accelerators: whole machines, or a part of one."""
        kept, left = list[Machines](), accelerators
        for group in self.machines:
            if left >= group.accelerators:
                count = min(group.count, left // group.accelerators)
                kept.append(replace(group, count=count))
                left -= count * group.accelerators
            if 0 < left < group.accelerators and (
                not kept or kept[-1].count < group.count or kept[-1].accelerators != group.accelerators
            ):
                host = group.host_memory * left // group.accelerators
                kept.append(replace(group, count=1, accelerators=left, host_memory=host))
                left = 0
        return replace(self, machines=tuple(kept))

    def slowest(self, start: int, stop: int) -> Machines:
        """What ranks ``start`` to ``stop`` can count on: the least memory, rate and link of the machines under them."""
        under, at = list[Machines](), 0
        for group in self.machines:
            end = at + group.count * group.accelerators
            if at < stop and start < end:
                under.append(group)
            at = end
        return replace(
            under[0],
            memory=min(m.memory for m in under),
            flops=min(m.flops for m in under),
            bandwidth=min(m.bandwidth for m in under),
            link=min(m.link for m in under),
            host_memory=min(m.host_memory // m.accelerators for m in under) * under[0].accelerators,
        )

    @property
    def price(self) -> float:
        """Of one hour of all accelerators."""
        return sum(group.count * group.accelerators * group.price for group in self.machines)


def uniform(accelerators: int, accelerator: Machines, network: float = NETWORK) -> Cluster:
    """``accelerators`` accelerators of one kind in machines of ``accelerator.accelerators``."""
    whole, rest = divmod(accelerators, accelerator.accelerators)
    groups = [replace(accelerator, count=whole)] if whole else []
    groups += [replace(accelerator, count=1, accelerators=rest)] if rest else []
    return Cluster(tuple(groups), network)


#: key of a cluster file -> (attribute, factor)
_UNITS: Mapping[str, tuple[str, float]] = {
    "memory": ("memory", GB),
    "host_memory": ("host_memory", GB),
    "tflops": ("flops", 1e12 * ASSUMED_SHARE),
    "measured_tflops": ("flops", 1e12),
    "bandwidth": ("bandwidth", GB),
    "link": ("link", GB),
}
_PLAIN = ("count", "accelerators", "accelerator", "price")
#: keys of cluster files before version 0.2
_OLD_KEYS = {"cards": "accelerators", "card": "accelerator"}
_NEEDED = ("count", "accelerators", "accelerator", "memory")


def read_cluster(document: Any, where: str) -> Cluster:
    """A cluster from the content of a cluster file.

    Raises:
        UsageError: names the place, and the nearest key for an unknown one.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("machines"), Sequence):
        raise UsageError("not a cluster file", where=where, expected="a list `machines` and a number `network`")
    _known(document, ("machines", "network"), where)
    groups = [_machines(row, f"{where}: machines[{i}]") for i, row in enumerate(document["machines"])]
    if not groups:
        raise UsageError("no machines", where=where)
    return Cluster(tuple(groups), _positive(document, "network", where) * GB if "network" in document else NETWORK)


def _machines(row: Any, where: str) -> Machines:
    if not isinstance(row, Mapping):
        raise UsageError("not a mapping", where=where, found=repr(row))
    row = {_OLD_KEYS.get(key, key): value for key, value in row.items()}
    _known(row, (*_PLAIN, *_UNITS), where)
    missing = [key for key in _NEEDED if key not in row]
    if not {"tflops", "measured_tflops"} & set(row):
        missing.append("tflops or measured_tflops")
    if missing:
        raise UsageError("something is missing", where=where, expected=", ".join(missing))
    values: dict[str, Any] = {"accelerator": str(row["accelerator"])}
    for key in ("count", "accelerators"):
        values[key] = int(_positive(row, key, where))
    for key in (k for k in row if k in _UNITS):
        name, factor = _UNITS[key]
        values[name] = _positive(row, key, where) * factor
    integers = {f.name for f in fields(Machines) if f.type == "int"}
    values = {k: int(v) if k in integers else v for k, v in values.items()}
    if "price" in row:
        values["price"] = _positive(row, "price", where)
    return Machines(**values)


def _known(row: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    for key in row:
        if key not in names:
            raise UsageError(f"unknown key {key!r}", where=where, fix=did_you_mean(str(key), names))


def _positive(row: Mapping[str, Any], key: str, where: str) -> float:
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise UsageError(f"{key} is not a number above 0", where=where, found=repr(value))
    return float(value)
