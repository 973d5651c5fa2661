"""How much each expert of a model is used, in a file of the run's directory. No paddle."""

from __future__ import annotations

import json
from pathlib import Path

from erniecore_system.durable import replace_file

from erniecore.api import CheckpointError
from erniecore.api.model import ElasticSizes

#: in the directory of a run
USAGE_NAME = "expert-usage.json"


def write_usage(run: Path, step: int, assignments: list[list[float]]) -> None:
    """Assignments to each expert, rows as layers and MTP layers, after ``step`` steps."""
    replace_file(run / USAGE_NAME, json.dumps({"step": step, "assignments": assignments}).encode())


def read_usage(run: Path, sizes: ElasticSizes) -> list[list[float]] | None:
    """What :func:`write_usage` wrote, with rows of 0 for MTP layers that were not trained; None: nothing. Raises
    ``CheckpointError`` for a file of another model."""
    file = run / USAGE_NAME
    if not file.is_file():
        return None
    try:
        found = [[float(value) for value in row] for row in json.loads(file.read_text(encoding="utf-8"))["assignments"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError("the usage of experts is damaged", where=str(file), fix="remove it") from error
    if len(found) not in (sizes.layers, sizes.rows) or any(len(row) != sizes.experts for row in found):
        shape = f"{len(found)} rows of {len(found[0]) if found else 0}"
        expected = f"{sizes.layers} of {sizes.experts}"
        raise CheckpointError("the usage is of another model", where=str(file), found=shape, expected=expected)
    return found + [[0.0] * sizes.experts] * (sizes.rows - len(found))
