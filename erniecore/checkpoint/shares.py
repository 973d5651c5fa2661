"""Who writes which file of a checkpoint that several processes hold together: every tensor has one owner among those
that can give it, owners are balanced by bytes, and each writes files of its own. Pure; every process computes the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from erniecore.checkpoint.safetensors_write import DEFAULT_SHARD_BYTES, file_order, split_shards
from erniecore.checkpoint.tensors import num_bytes

#: (group, name)
Key = tuple[str, str]
#: (safetensors dtype, shape) of a whole tensor
Spec = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class PlannedFile:
    """A file to be written: its name, the process that writes it, and what will be in it."""

    name: str
    group: str
    owner: int
    tensors: Mapping[str, Spec]


@dataclass(frozen=True)
class Shares:
    """A whole checkpoint, divided.

    Attributes:
        files: in the order of their names. owners: the process of each tensor.
    """

    files: Sequence[PlannedFile]
    owners: Mapping[Key, int]

    @property
    def specs(self) -> dict[str, dict[str, Spec]]:
        """Group -> name -> what it is, over all processes."""
        found: dict[str, dict[str, Spec]] = {}
        for file in self.files:
            found.setdefault(file.group, {}).update(file.tensors)
        return found

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        return sum(num_bytes(*spec) for file in self.files for spec in file.tensors.values())

    def of(self, owner: int) -> list[PlannedFile]:
        """The files of one process."""
        return [file for file in self.files if file.owner == owner]

    def rounds(self, ahead: int) -> Iterator[list[Key]]:
        """All tensors, so that the owners get theirs at the same time: up to ``ahead`` bytes of each per round, in the
        order in which they are written."""
        queues = {
            owner: [
                (file.group, name, num_bytes(*file.tensors[name]))
                for file in files
                for name in file_order(file.tensors)
            ]
            for owner, files in groupby(sorted(self.files, key=lambda file: file.owner), lambda file: file.owner)
        }
        while queues:
            taken: list[Key] = []
            for owner in list(queues):
                queue, size = queues[owner], 0
                count = 0
                while count < len(queue) and (count == 0 or size + queue[count][2] <= ahead):
                    size += queue[count][2]
                    count += 1
                taken += [(group, name) for group, name, _ in queue[:count]]
                queues[owner] = queue[count:]
                if not queues[owner]:
                    del queues[owner]
            yield taken


def divide(
    specs: Mapping[str, Mapping[str, Spec]],
    holders: Mapping[Key, Sequence[int]],
    max_bytes: int = DEFAULT_SHARD_BYTES,
) -> Shares:
    """Choose owners and files.

    Args:
        specs: group -> name -> whole tensor. holders: the processes that can give it; a tensor that is not named: 0.
        max_bytes: of a file; a tensor larger than that is alone in one.
    """
    owners = _owners(specs, holders)
    files: list[PlannedFile] = []
    for group, members in specs.items():
        parts: list[tuple[int, list[str]]] = []
        for owner in sorted({owners[group, name] for name in members}) or [0]:
            sizes = {name: num_bytes(*spec) for name, spec in members.items() if owners[group, name] == owner}
            parts += [(owner, names) for names in split_shards(sizes, max_bytes)]
        files += [
            PlannedFile(file_name(group, number, len(parts)), group, owner, {name: members[name] for name in names})
            for number, (owner, names) in enumerate(parts, 1)
        ]
    return Shares(files, owners)


def file_name(stem: str, number: int, count: int) -> str:
    """``<stem>-00001-of-0000n.safetensors``."""
    return f"{stem}-{number:05d}-of-{count:05d}.safetensors"


def _owners(specs: Mapping[str, Mapping[str, Spec]], holders: Mapping[Key, Sequence[int]]) -> dict[Key, int]:
    """Large tensors first, those with the fewest holders before them, each to its holder with the fewest bytes."""
    sizes = {(group, name): num_bytes(*spec) for group, members in specs.items() for name, spec in members.items()}
    load: dict[int, int] = {}
    owners: dict[Key, int] = {}
    for key in sorted(sizes, key=lambda key: (len(holders.get(key, (0,))), -sizes[key])):
        owner = min(holders.get(key, (0,)), key=lambda rank: (load.get(rank, 0), rank))
        owners[key] = owner
        load[owner] = load.get(owner, 0) + sizes[key]
    return owners
