"""What completions are compared with: a model that stays as it is, one that follows the policy from time to time, values
that were computed once, or nothing. Not the loss.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle  # noqa: TID253

from erniecore.api import CheckpointError
from erniecore.api.method import Batch, Objective, ReferenceUse
from erniecore_preference.grouping import Completions, completions_of
from erniecore_preference.scoring import without_gradient
from erniecore_preference.table import Table, read_table, sample_keys, table_of, table_text, write_table

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from paddle import Tensor


#: computed values are written to disk as often
SAVE_EVERY = 4096


class ReferenceObjective(Objective):
    """The part of an objective that knows the reference; see ``erniecore.api.Objective`` for the members.

    Args:
        config: the method's section. policy: a ``CausalLM``. reference: a frozen one, or None.
    """

    #: the losses are no likelihoods: they have no perplexity
    is_nll = False
    #: completions of one sample
    per_sample = 1

    def __init__(self, config: Any, policy: Any, reference: Any = None) -> None:
        self.config, self.policy, self.reference = config, policy, reference
        use: ReferenceUse = config.reference_use()
        self.every, self.looked_up = use.update_steps, use.source == "precomputed"
        self.table: Table | None = None

    def referred(self, batch: Batch, completions: Completions) -> Tensor:
        """Log-probabilities under the reference, float64 [A]; zeros without one."""
        if self.looked_up:
            table = Table.empty(self.per_sample) if self.table is None else self.table
            return paddle.to_tensor(table.look_up(batch, completions))
        if self.reference is None:
            return paddle.zeros([len(completions)], "float64")
        return without_gradient(self.reference, batch, completions, self.loss_chunk)

    # ---- a reference that follows

    def after_step(self, *, step: int, rate: float) -> None:
        """Every ``reference_update_steps`` steps the reference becomes the policy."""
        if self.every and step % self.every == 0:
            with paddle.no_grad():
                for theirs, ours in self._moving().values():
                    theirs.set_value(ours)

    def _moving(self) -> dict[str, tuple[Tensor, Tensor]]:
        """name -> (reference's, policy's) of every tensor that they do not share."""
        if not self.every or self.reference is None:
            return {}
        ours = self.policy.state_dict()
        pairs = {name: (theirs, ours[name]) for name, theirs in self.reference.state_dict().items()}
        return {name: pair for name, pair in pairs.items() if pair[0] is not pair[1]}

    def state_tensors(self) -> dict[str, Tensor]:
        """A reference that moves is part of the run's state."""
        return {name: theirs for name, (theirs, _) in self._moving().items()}

    def load_state_arrays(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        for name, theirs in self.state_tensors().items():
            theirs.set_value(paddle.to_tensor(np.array(arrays[name])).astype(theirs.dtype))

    # ---- values that were computed once

    def begin(self, batches: Iterator[Batch], *, step: int, out: Path) -> dict[str, object]:
        """Compute what the file lacks, with the initial weights.

        Raises:
            CheckpointError: a run goes on whose checkpoint has no values, so that the initial weights are gone.
        """
        if not self.looked_up or self.table is not None:
            return {}
        if step:
            raise CheckpointError(
                "this checkpoint holds no values of a reference, and its weights are not the initial ones",
                expected="a run that began with method.reference=precomputed",
                fix="set method.reference=live, or begin a new run (run.resume=never)",
            )
        place = Path(self.config.reference_cache) if self.config.reference_cache else out / "reference"
        path = place / f"{self._identity()}.safetensors"
        kept = _Kept(path, *self._keeper())
        table = self._told(read_table(path, self.per_sample) if kept.here else None, kept)
        self.table, num_samples, num_computed = self._completed(table, batches, kept)
        facts = {"samples": num_samples, "computed": num_computed, "reused": num_samples - num_computed}
        return {"kind": "reference", **facts, "path": str(path)}

    def _identity(self) -> str:
        """That of the policy; of one whose weights are divided among ranks, of all parts."""
        parts = list(
            dict.fromkeys(self.all_gather_object(identity(self.policy)))
        )  # ranks with the same part say the same
        return parts[0] if len(parts) == 1 else hashlib.blake2b(" ".join(parts).encode(), digest_size=16).hexdigest()

    def _keeper(self) -> tuple[int, bool]:
        """The one rank that reads and writes the file, whose values all take over; and whether it is this one."""
        name = secrets.token_hex(8)
        told = self.all_gather_object([self.counts, name])
        keeper = next(i for i, (counts, _) in enumerate(told) if counts)
        return keeper, told[keeper][1] == name

    def _told(self, table: Table | None, kept: _Kept) -> Table:
        """The keeper's table."""
        told = self.all_gather_object(table_text(table) if kept.here and table is not None else None)
        return table_of(told[kept.rank], self.per_sample)

    def _completed(self, table: Table, batches: Iterator[Batch], kept: _Kept) -> tuple[Table, int, int]:
        """The table with every sample of ``batches``; how many these are, and how many were new."""
        new_keys, new_values = [], []
        num_samples = num_computed = num_waiting = 0
        for batch in batches:
            completions = completions_of(batch)
            keys = sample_keys(batch, completions)
            num_samples += len(keys)
            if not table.knows(keys).all():
                new_keys.append(keys)
                new_values.append(without_gradient(self.policy, batch, completions, self.loss_chunk).numpy())
                num_computed, num_waiting = num_computed + len(keys), num_waiting + len(keys)
            if num_waiting >= SAVE_EVERY:
                table, num_waiting = self._stored(table.with_rows(new_keys, new_values), kept), 0
                new_keys, new_values = [], []
        if num_waiting:
            table = self._stored(table.with_rows(new_keys, new_values), kept)
        return table, num_samples, num_computed

    def _stored(self, table: Table, kept: _Kept) -> Table:
        """The keeper's table, which is on its disk now."""
        if kept.here:
            write_table(kept.path, table)
        return self._told(table, kept)

    def carried(self) -> dict[str, NDArray[np.generic]]:
        """The table, so that a continued run needs neither the initial weights nor the file."""
        return {} if self.table is None else self.table.arrays()

    def load_carried(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        """What ``carried`` gave. Raises ``CheckpointError`` for a checkpoint without a table."""
        if not self.looked_up:
            return
        try:
            self.table = Table.of(arrays)
        except KeyError as error:
            raise CheckpointError(
                "this checkpoint holds no values of a reference", found=str(sorted(arrays))
            ) from error


@dataclass(frozen=True)
class _Kept:
    """A file, and the rank that keeps it; ``here``: whether that is this one."""

    path: Path
    rank: int
    here: bool


def identity(model: Any) -> str:
    """A hash of all that a log-probability depends on but for the tokens: weights, dtypes, architecture."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps(model.architecture, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(np.ascontiguousarray(tensor.numpy()).tobytes())
    return digest.hexdigest()
