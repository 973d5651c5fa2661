"""What ``ernie eval`` was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from erniecore_generation.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Asked:
    """What `ernie eval` was asked for, beside the model; ``by_row``: every row is computed by itself and kept; ``hashed``: the
    model's files and the rows are hashed."""

    data: tuple[str, ...]
    format: str
    method: str
    reference: Path | None
    limit: int
    group_by: str
    batch_size: int
    max_seq_len: int
    generate: bool
    completions: Path | None
    max_new_tokens: int
    sampling: Sampling
    speculative: str
    seed: int
    adapter: Path | None
    device: str
    by_row: bool
    hashed: bool = False
