"""``ernie score``: the rewards of completions in data files. Paddle comes in once the arguments make sense."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from erniecore.api import DataError, counted
from erniecore.api.command import opens_models
from erniecore.api.data import Conversation, Document, Message, Preference
from erniecore.api.method import Record


@opens_models
def score(
    model: Annotated[Path, typer.Option("--model", metavar="DIR", help="Reward model: directory, run or checkpoint.")],
    data: Annotated[list[Path], typer.Option("--data", metavar="FILE", help="Data file; may be repeated.")],
    format: Annotated[str, typer.Option("--format", metavar="NAME", help="Format of the data.")] = "auto",
    adapter: Annotated[
        Path | None, typer.Option("--adapter", metavar="DIR", help="A saved adapter; a run brings its own.")
    ] = None,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="Device plugin.")] = "cpu",
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Completions at a time.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
) -> None:
    """Print the reward of the last message of each conversation, or of both completions of each pair.

    Pairs also get the margin of the chosen completion; the last line is the fraction of pairs in the right order.
    """
    from erniecore_data.reading import read_records

    from erniecore.api.rows import describe

    records, errors = read_records(data, format)
    if errors:
        raise DataError(
            f"{counted(len(errors), 'row')} cannot be read",
            found=f"the first: {describe(errors[0])}",
            next=f"ernie data check {data[0]}",
        )
    asked = [list(_conversations(record)) for record in records]
    from erniecore_reward.scoring import RewardModel

    rewards = RewardModel.open(model, adapter=adapter, device=device, batch_size=batch_size)
    scores = iter(rewards.scores([conversation for row in asked for conversation in row]))
    rows = [_row(record, [next(scores) for _ in row]) for record, row in zip(records, asked, strict=True)]
    for row in rows:
        typer.echo(json.dumps(row, ensure_ascii=False) if as_json else _line(row))
    margins = [row["margin"] for row in rows if "margin" in row]
    if margins and not as_json:
        right = sum(margin > 0 for margin in margins)
        typer.echo(f"{right} of {counted(len(margins), 'pair')} in the right order: {right / len(margins):.4f}")


def _conversations(record: Record) -> Iterator[Sequence[Message]]:
    """One, or for a pair the preferred one and the rejected one."""
    if isinstance(record, Document):
        raise DataError("plain text has no completion to judge", where=record.origin.place())
    if isinstance(record, Preference):
        yield [*record.prompt, *record.chosen]
        yield [*record.prompt, *record.rejected]
    else:
        yield record.messages


def _row(record: Record, scores: Sequence[float]) -> dict[str, Any]:
    where: dict[str, Any] = {"file": record.origin.file, "line": record.origin.line}
    if record.origin.element is not None:
        where["element"] = record.origin.element
    if isinstance(record, Preference):
        chosen, rejected = scores
        return {**where, "chosen": chosen, "rejected": rejected, "margin": chosen - rejected}
    assert isinstance(record, Conversation) or len(scores) == 1
    return {**where, "score": scores[0]}


def _line(row: dict[str, Any]) -> str:
    values = "  ".join(f"{name} {value:+.4f}" for name, value in row.items() if isinstance(value, float))
    return f"{row['file']}:{row['line']}  {values}"
