"""Log-probabilities of completions under the reference, computed once: a table by what a sample's tokens are, and its file.
numpy only.

A sample is known by a hash of its tokens up to its last learned one, and of its images, so it does not matter in which
batch, row, order or file it stands. The file is named after everything else that the values depend on.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from erniecore.api import CheckpointError
from erniecore.api.method import Batch
from erniecore_preference.arrays import read_arrays, write_arrays
from erniecore_preference.grouping import Completions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Keys = NDArray[np.uint64]
    Values = NDArray[np.float64]


def sample_keys(batch: Batch, completions: Completions) -> Keys:
    """A hash of each sample, uint64 [N], in the order of their completions."""
    starts = np.flatnonzero(batch.fields["sample"].reshape(-1))
    owner = np.searchsorted(starts, completions.where, side="right") - 1
    lasts = np.zeros(len(starts), np.int64)
    np.maximum.at(lasts, owner, completions.where)
    told = [batch.input_ids, batch.labels, batch.position_ids, batch.fields["completion"]]
    told += [batch.fields["media"]] if "media" in batch.fields else []
    columns = [a.reshape(batch.input_ids.size, -1) for a in told]  # positions may have several axes
    keys = []
    for start, last in zip(starts, lasts, strict=True):
        digest = hashlib.blake2b(digest_size=8)
        for column in columns:
            digest.update(np.ascontiguousarray(column[start : last + 1], np.int64).tobytes())
        keys.append(int.from_bytes(digest.digest(), "little"))
    return np.asarray(keys, np.uint64)


@dataclass(frozen=True)
class Table:
    """``keys`` uint64 [N] ascending; ``values`` float64 [N, k]: summed log-probabilities of each sample's k completions."""

    keys: Keys
    values: Values

    @classmethod
    def empty(cls, per_sample: int) -> Table:
        """For samples of that many completions."""
        return cls(np.zeros(0, np.uint64), np.zeros((0, per_sample)))

    def with_rows(self, keys: Sequence[Keys], values: Sequence[Values]) -> Table:
        """With further samples, given in parts; known ones stay as they are."""
        joined, first = np.unique(np.concatenate([self.keys, *keys]), return_index=True)
        width = self.values.shape[1]
        return Table(joined, np.concatenate([self.values, *(part.reshape(-1, width) for part in values)])[first])

    def knows(self, keys: Keys) -> NDArray[np.bool_]:
        """bool [N]: whether each key is in the table."""
        if not len(self.keys):
            return np.zeros(len(keys), np.bool_)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        found: NDArray[np.bool_] = self.keys[places] == keys
        return found

    def look_up(self, batch: Batch, completions: Completions) -> Values:
        """Log-probability of each completion of ``batch``, float64 [A]. Raises ``CheckpointError`` for an unknown sample."""
        keys = sample_keys(batch, completions)
        unknown = np.flatnonzero(~self.knows(keys))
        if len(unknown):
            origin = batch.origins[int(unknown[0])] if batch.origins else None
            raise CheckpointError(
                "the reference's values of this sample are not known",
                where=origin.place() if origin else "",
                found=f"{len(unknown)} of {len(keys)} samples of a batch",
                fix="the data is not that which the run began with: begin a new run (run.resume=never)",
            )
        found: Values = self.values[np.searchsorted(self.keys, keys)].reshape(-1)
        return found

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """For a file or a checkpoint."""
        return {"reference.keys": self.keys, "reference.values": self.values}

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Table:
        """The reverse of :meth:`arrays`."""
        return cls(arrays["reference.keys"].astype(np.uint64), arrays["reference.values"].astype(np.float64))


def table_text(table: Table) -> list[str]:
    """A table for another process."""
    return [base64.b64encode(array.tobytes()).decode() for array in (table.keys, table.values)]


def table_of(text: Sequence[str], per_sample: int) -> Table:
    """The reverse of :func:`table_text`."""
    keys, values = map(base64.b64decode, text)
    return Table(np.frombuffer(keys, np.uint64), np.frombuffer(values, np.float64).reshape(-1, per_sample))


def read_table(path: Path, per_sample: int) -> Table:
    """The table in ``path``; an empty one where there is no file. Raises ``CheckpointError`` for a damaged one."""
    if not path.is_file():
        return Table.empty(per_sample)
    arrays = read_arrays(path)
    try:
        table = Table.of(arrays)
    except KeyError as error:
        raise CheckpointError("this file holds no values of a reference", where=str(path)) from error
    if table.values.shape != (len(table.keys), per_sample):
        raise CheckpointError(
            "this file holds values of another kind of rows",
            where=str(path),
            found=str(table.values.shape),
            expected=f"{per_sample} per sample",
        )
    return table


def write_table(path: Path, table: Table) -> None:
    """Replace ``path`` at once. Raises ``CheckpointError``."""
    write_arrays(path, table.arrays())
