"""The write plan of a sharded checkpoint: which rank writes which file. One of the ranks that have a tensor becomes its owner,
owners are balanced by bytes, and each owner writes its own files. A pure function, so all ranks compute the same plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from erniecore_checkpoint.safetensors_write import DEFAULT_SHARD_BYTES, file_order, split_shards
from erniecore_checkpoint.tensors import num_bytes

#: (group, name)
Key = tuple[str, str]
#: (safetensors dtype, shape) of a full tensor
Spec = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class PlannedFile:
    """One file: its name, the rank that writes it, and its tensors."""

    name: str
    group: str
    owner: int
    tensors: Mapping[str, Spec]


@dataclass(frozen=True)
class WritePlan:
    """All files of a checkpoint and the ranks that write them.

    Attributes:
        files: sorted by name. owners: the rank that writes each tensor.
    """

    files: Sequence[PlannedFile]
    owners: Mapping[Key, int]

    @property
    def specs(self) -> dict[str, dict[str, Spec]]:
        """Group -> name -> dtype and shape, over all ranks."""
        found: dict[str, dict[str, Spec]] = {}
        for file in self.files:
            found.setdefault(file.group, {}).update(file.tensors)
        return found

    @property
    def num_bytes(self) -> int:
        """Size of all tensors, in bytes."""
        return sum(num_bytes(*spec) for file in self.files for spec in file.tensors.values())

    def of(self, owner: int) -> list[PlannedFile]:
        """The files that rank ``owner`` writes."""
        return [file for file in self.files if file.owner == owner]

    def rounds(self, ahead: int) -> Iterator[list[Key]]:
        """All tensors in the order in which they are gathered and written: per round, up to ``ahead`` bytes for each owner, so
        that all owners write at the same time."""
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
) -> WritePlan:
    """Choose owners and files.

    Args:
        specs: group -> name -> full tensor. holders: the ranks that have it; rank 0 if a tensor is not in the mapping.
        max_bytes: per file; a larger tensor gets a file of its own.
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
    return WritePlan(files, owners)


def file_name(stem: str, number: int, count: int) -> str:
    """The name of a shard file: ``<stem>-00001-of-0000n.safetensors``."""
    return f"{stem}-{number:05d}-of-{count:05d}.safetensors"


def _owners(specs: Mapping[str, Mapping[str, Spec]], holders: Mapping[Key, Sequence[int]]) -> dict[Key, int]:
    """Tensors with the fewest holders first, larger ones before smaller ones; each goes to its holder with the fewest bytes."""
    sizes = {(group, name): num_bytes(*spec) for group, members in specs.items() for name, spec in members.items()}
    load: dict[int, int] = {}
    owners: dict[Key, int] = {}
    for key in sorted(sizes, key=lambda key: (len(holders.get(key, (0,))), -sizes[key])):
        owner = min(holders.get(key, (0,)), key=lambda rank: (load.get(rank, 0), rank))
        owners[key] = owner
        load[owner] = load.get(owner, 0) + sizes[key]
    return owners
