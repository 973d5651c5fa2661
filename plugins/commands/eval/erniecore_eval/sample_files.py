"""Files of samples: JSON lines of what a model got on each row, as ``ernie eval --samples`` and ``ernie lm-eval --samples`` write
them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from erniecore.api import DataError, Json, shorten
from erniecore.api.command import store_text
from erniecore.api.files import parse_json, read_bytes
from erniecore_eval.compared import ScoredRow
from erniecore_eval.suites import Item, Score

#: bytes of a file of samples
_LARGEST = 1 << 30


def row_of_score(index: int, item: Item, score: Score, correct: bool | None) -> ScoredRow:
    """A row of `ernie eval`. Its loss is the summed likelihood in nats, or that of a method whose loss is none."""
    content = json.dumps(asdict(item.record), sort_keys=True, ensure_ascii=False, default=str)
    loss, weight = (score.nll, float(score.tokens)) if score.nll is not None else score.metrics.get("loss", (None, 1.0))
    means = {name: value for name, value in score.means.items() if name != "loss"}
    if correct is None and "accuracy" in means:
        correct = means["accuracy"] > 0.5
    digest = hashlib.sha256(content.encode()).hexdigest()
    return ScoredRow(str(index), digest, item.group, loss, weight, score.text_bytes, correct, means)


def write_rows(path: Path, rows: Iterable[ScoredRow]) -> None:
    """Replace ``path``. Raises ``CheckpointError`` where it cannot be written."""
    store_text(path, "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows), "writing samples")


def read_rows(path: Path) -> list[ScoredRow]:
    """The rows of a file of either command.

    Raises:
        DataError: a file that cannot be read, a line that is no sample.
    """
    rows = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            value = parse_json(line)
        except ValueError as error:
            raise DataError("this line is no JSON", where=where, found=str(error)) from error
        if not isinstance(value, dict) or not isinstance(value.get("id"), str):
            raise DataError(
                "this line is no sample",
                where=where,
                found=shorten(str(value)),
                expected="a line of --samples of `ernie eval` or `ernie lm-eval`",
            )
        rows.append(_row(value))
    if not rows:
        raise DataError("a file without samples", where=str(path))
    return rows


def _lines(path: Path) -> list[bytes]:
    try:
        return read_bytes(path, _LARGEST).splitlines()
    except OSError as error:
        raise DataError("cannot read samples", where=str(path), found=str(error.strerror)) from error


def _row(value: Json) -> ScoredRow:
    scores = value.get("scores")
    correct, loss = value.get("correct"), value.get("loss")
    return ScoredRow(
        id=str(value["id"]),
        digest=str(value.get("digest") or ""),
        group=str(value.get("group") or value.get("task") or ""),
        loss=float(loss) if isinstance(loss, int | float) else None,
        weight=_number(value, "weight", 1.0),
        text_bytes=int(_number(value, "text_bytes", 0)),
        correct=None if correct is None else bool(correct),
        scores={k: float(v) for k, v in scores.items() if isinstance(v, int | float)}
        if isinstance(scores, dict)
        else {},
    )


def _number(value: Mapping[str, Any], name: str, default: float) -> float:
    found = value.get(name)
    return float(found) if isinstance(found, int | float) else default
