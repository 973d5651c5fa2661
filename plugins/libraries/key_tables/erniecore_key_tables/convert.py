"""A whole foreign file by a table and steps: every key is mapped, dropped with a reason, unknown, or a problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from erniecore.api.importer import Imported
from erniecore_key_tables.draft import Draft
from erniecore_key_tables.table import KeyTable, Left

D = TypeVar("D", bound=Draft)

#: our sections in the order in which they are written
SECTIONS = (
    "model", "method", "adapter", "quantizer", "parallel", "device",
    "run", "data", "train", "optimizer", "eval", "checkpoint", "log", "callbacks", "formats",
)  # fmt: skip


def convert(
    table: KeyTable,
    given: Mapping[str, Any],
    draft_of: Callable[[Mapping[str, Any], dict[str, str]], D],
    steps: Sequence[Callable[[D], None]],
) -> tuple[Imported, D]:
    """The outcome for a file's content (flat, dotted keys allowed), and the finished draft.

    Args:
        draft_of: makes the draft from the known keys with readable values, and the problems of the others.
        steps: in an order in which later ones may look at the settings of earlier ones. Keys that no step and no row of the
            table says anything of are dropped.
    """
    named, unknown = table.split(given)
    flat, problems = table.readable(named)
    draft = draft_of(flat, problems)
    for step in steps:
        step(draft)
    for old in flat:
        if not table.keys[old].together:
            _alone(draft, old)
    left = [o for o in flat if draft.has(o) and o not in {**draft.mapped, **draft.dropped, **draft.problems}]
    draft.drop("`ernie run` does not read it", *left)
    draft.finish(flat)
    order = {name: i for i, name in enumerate(SECTIONS)}
    settings = dict(sorted(draft.settings.items(), key=lambda item: order[item[0].partition(".")[0]]))
    outcome = Imported(
        toolkit=table.toolkit,
        settings=settings,
        mapped={old: draft.mapped[old] for old in flat if old in draft.mapped},
        dropped={old: draft.dropped[old] for old in flat if old in draft.dropped},
        unknown=tuple(unknown),
        suggestions={name: table.suggestion(name) for name in unknown if table.suggestion(name)},
        unknown_reason=table.unknown_reason,
        notes=tuple(draft.notes),
        problems=draft.problems,
    )
    return outcome, draft


def convert_each(table: KeyTable, given: Mapping[str, Any]) -> Imported:
    """The outcome where every key stands alone."""

    def draft_of(flat: Mapping[str, Any], problems: dict[str, str]) -> Draft:
        return Draft(table=table, given=flat, problems=problems)

    return convert(table, given, draft_of, ())[0]


def _alone(draft: Draft, old: str) -> None:
    """A key whose meaning does not depend on others."""
    key = draft.table.keys[old]
    if old in draft.mapped or old in draft.dropped or old in draft.problems:
        return
    value = draft.get(old)
    if not draft.has(old) and key.new:
        return
    result = key.convert(value) if key.convert else value
    if isinstance(result, Left):
        draft.leave(result, old)
    elif key.new:
        draft.set(key.new, result, old)
    else:
        draft.drop(key.note, old)
