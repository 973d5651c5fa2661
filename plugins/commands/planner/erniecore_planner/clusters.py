"""The machines of a plan: kinds of accelerators, how many sit in a machine, what links them. From flags or from a cluster
file. Data only; nothing here knows what is trained.

A cluster file (YAML or JSON) lists machines in the order in which ranks fill them::

    machines:
      - {count: 4, accelerators: 8, accelerator: A100, memory: 80, tflops: 312, link: 250, host_memory: 1000, price: 2.0}
      - {count: 2, accelerators: 8, accelerator: L40S, memory: 48, tflops: 362, link: 25}
    network: 25

Machines may have a ``network`` of their own. Where links differ, ``links`` is a matrix in GB/s: at the top of every machine to
every other one, in the order of the file (a row with ``count: 4`` is four machines), in a row of ``machines`` between its
accelerators; what is on the diagonal does not count.

``memory`` and ``host_memory`` in GB, ``tflops`` of dense products in the run's precision, ``bandwidth`` of the accelerator's
memory, ``link`` (inside a machine) and ``network`` (between machines, per accelerator) in GB/s, ``price`` per accelerator
and hour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
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


#: bytes per second between each two of some
Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Machines:
    """Machines that are alike.

    Attributes:
        count: of machines; accelerators: in each. accelerator: name. memory: bytes of an accelerator.
        flops: per second that products reach.
        bandwidth: bytes per second of the accelerator's memory; 0: unknown. link: between accelerators of a machine.
        host_memory: bytes of a machine; 0: nothing is known, and nothing may be kept there. price: per accelerator and hour.
        latency: seconds of a message between its accelerators.
        network: to other machines, per accelerator; 0: the cluster's. links: bytes per second between each two of its
            accelerators; empty: ``link``.
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
    network: float = 0.0
    links: Matrix = ()


@dataclass(frozen=True, slots=True, eq=False)  # clusters are keys of caches; comparing machines would take the time
class Cluster:
    """All machines in the order of ranks, and the network between them, bytes per second and accelerator.

    Attributes:
        links: bytes per second and accelerator between each two machines; empty: ``network``, or what the machines have.
        along: (seconds per message, bytes per second) of the slowest link along each axis of a layout whose ranks are placed;
            then ``machines`` are those of its places in order. Empty: ranks lie in the order of the machines.
    """

    machines: tuple[Machines, ...]
    network: float = NETWORK
    links: Matrix = ()
    along: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of accelerators in total."""
        return sum(group.count * group.accelerators for group in self.machines)

    @property
    def equally_fast(self) -> bool:
        """Whether all accelerators are."""
        return len({group.flops for group in self.machines}) <= 1

    @property
    def slowest_network(self) -> float:
        """Bytes per second and accelerator between those two machines that are joined worst."""
        if self.links:
            return min(
                (rate for i, row in enumerate(self.links) for j, rate in enumerate(row) if i != j), default=NETWORK
            )
        return min(group.network or self.network for group in self.machines)

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
                links = tuple(row[:left] for row in group.links[:left])
                kept.append(replace(group, count=1, accelerators=left, host_memory=host, links=links))
                left = 0
        number = sum(group.count for group in kept)
        return replace(self, machines=tuple(kept), links=tuple(row[:number] for row in self.links[:number]))

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
    "network": ("network", GB),
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
    _known(document, ("machines", "network", "links"), where)
    groups = [_machines(row, f"{where}: machines[{i}]") for i, row in enumerate(document["machines"])]
    if not groups:
        raise UsageError("no machines", where=where)
    links = _matrix(document, sum(group.count for group in groups), "machines", where) if "links" in document else ()
    network = _positive(document, "network", where) * GB if "network" in document else NETWORK
    return Cluster(tuple(groups), network, links)


def _machines(row: Any, where: str) -> Machines:
    if not isinstance(row, Mapping):
        raise UsageError("not a mapping", where=where, found=repr(row))
    row = {_OLD_KEYS.get(key, key): value for key, value in row.items()}
    _known(row, (*_PLAIN, *_UNITS, "links"), where)
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
    if "links" in row:
        values["links"] = _matrix(row, values["accelerators"], "accelerators", where)
        between = (rate for i, rates in enumerate(values["links"]) for j, rate in enumerate(rates) if i != j)
        values.setdefault("link", min(between, default=LINK))
    return Machines(**values)


def _known(row: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    for key in row:
        if key not in names:
            raise UsageError(f"unknown key {key!r}", where=where, fix=did_you_mean(str(key), names))


def _matrix(row: Mapping[str, Any], size: int, what: str, where: str) -> Matrix:
    """GB/s between each two of ``size``, as bytes per second."""
    found = row["links"]
    square = isinstance(found, list) and len(found) == size
    if not square or not all(isinstance(line, list) and len(line) == size for line in found):
        raise UsageError(
            "links is not a matrix", where=where, expected=f"{size} rows of {size} numbers: GB/s between {what}"
        )
    for i, line in enumerate(found):
        for j in (j for j in range(size) if j != i):
            _positive({f"links[{i}][{j}]": line[j]}, f"links[{i}][{j}]", where)
            if line[j] != found[j][i]:
                text = f"links[{i}][{j}] is {line[j]}, links[{j}][{i}] is {found[j][i]}"
                raise UsageError(
                    "a link has two rates", where=where, found=text, fix="write the slower one in both places"
                )
    return tuple(
        tuple(0.0 if i == j else float(rate) * GB for j, rate in enumerate(line)) for i, line in enumerate(found)
    )


def _positive(row: Mapping[str, Any], key: str, where: str) -> float:
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise UsageError(f"{key} is not a number above 0", where=where, found=repr(value))
    return float(value)
