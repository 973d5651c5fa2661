"""Samples of the evaluations of a run, in a file of JSON lines that stays small: those of its last evaluations and of the first,
with long texts cut. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from erniecore.api import Json
from erniecore.api.command import store_text
from erniecore.api.files import parse_json, read_bytes

#: evaluations in a file
MOST = 20
#: characters of a text
LONGEST = 2000
_LARGEST = 1 << 26


@dataclass(frozen=True, slots=True)
class KeptSample:
    """One example of an evaluation.

    Attributes:
        step: of the evaluation. prompt: as the model got it. completion: what it wrote. reference: what is right.
        scores: metric -> value.
    """

    step: int
    prompt: str
    completion: str
    reference: str
    scores: Mapping[str, float]


def keep_samples(path: Path, samples: Sequence[KeptSample]) -> None:
    """Add the samples of one evaluation. What the file has of this step and later ones was measured before the run went on from a
    checkpoint, and makes way. Raises ``CheckpointError`` where it cannot be written."""
    if not samples:
        return
    step = samples[0].step
    rows = [row for row in read_samples(path) if int(row["step"]) < step] if path.is_file() else []
    rows += [asdict(_cut(sample)) for sample in samples]
    steps = sorted({int(row["step"]) for row in rows})
    wanted = {*steps[:1], *steps[1:][-(MOST - 1) :]}
    lines = [json.dumps(row, ensure_ascii=False) for row in rows if int(row["step"]) in wanted]
    store_text(path, "".join(f"{line}\n" for line in lines), "writing samples of an evaluation")


def read_samples(path: Path) -> list[Json]:
    """The rows of such a file; a line that is none is left out."""
    found: list[Json] = []
    for line in read_bytes(path, _LARGEST).splitlines():
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            found.append(row)
    return found


def _cut(sample: KeptSample) -> KeptSample:
    def short(text: str) -> str:
        return text if len(text) <= LONGEST else text[:LONGEST] + "…"

    return replace(
        sample, prompt=short(sample.prompt), completion=short(sample.completion), reference=short(sample.reference)
    )
