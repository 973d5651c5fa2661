"""What the data path and generation reached on a machine, as ``ernie bench loader`` and ``ernie bench serve`` found it, and
what follows for a plan. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DataRate:
    """Reading, encoding, packing and collating.

    Attributes:
        device, machine, dtype, day: as in ``rates.Rate``; ``dtype`` is the method and its tokenizer's kind of rows.
        workers: processes that encoded. bytes_per_s, rows_per_s, tokens_per_s: from files to tokens.
        pack_tokens_per_s: tokens put into rows, before an epoch. batch_tokens_per_s: positions of batches, within steps.
        token_bytes: of text per token. sample: mean tokens of a sample. fill: share of row positions that hold tokens.
    """

    device: str
    machine: str
    dtype: str
    day: str
    workers: int
    bytes_per_s: float
    rows_per_s: float
    tokens_per_s: float
    pack_tokens_per_s: float
    batch_tokens_per_s: float
    token_bytes: float
    sample: float
    fill: float


@dataclass(frozen=True, slots=True)
class ServeRate:
    """Generation with one model.

    Attributes:
        device, machine, dtype, day: as in ``rates.Rate``. model: what was measured. active: its parameters per token.
        prefill: (prompt length, tokens per second). decode: (rows, length, tokens per second of all rows, seconds of a step
            at the 50th and the 95th percentile).
    """

    device: str
    machine: str
    dtype: str
    day: str
    model: str
    active: int
    prefill: tuple[tuple[int, float], ...]
    decode: tuple[tuple[int, int, float, float, float], ...]


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of them do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered) + 0.5) - 1))]


def data_seconds(rate: DataRate, tokens: int) -> float:
    """Of the batches of a step with ``tokens`` positions in this process; they are made before the step, beside nothing."""
    return tokens / rate.batch_tokens_per_s


def starting_seconds(rate: DataRate, size: int) -> float:
    """Until the first step can begin with ``size`` bytes of data that are in no cache."""
    return size / rate.bytes_per_s + size / rate.token_bytes / rate.pack_tokens_per_s


def serving(rate: ServeRate, active: int, rows: int, length: int) -> tuple[float, float]:
    """(tokens per second of prompts, of answers) to expect of a model with ``active`` parameters per token: those of the
    measured one at the nearest number of rows and length, slower as its parameters are more."""
    scale = rate.active / active
    _, prefill = min(rate.prefill, key=lambda row: abs(row[0] - length))
    *_, decode = (row[2] for row in sorted(rate.decode, key=lambda row: (-abs(row[0] - rows), -abs(row[1] - length))))
    return prefill * scale, decode * scale
