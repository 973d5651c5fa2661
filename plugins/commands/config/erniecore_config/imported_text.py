"""Imported settings as a settings file of ours, each value with the key that it comes from; and the table of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from erniecore.api import UsageError
from erniecore.api.importer import Imported, ImportedSetting
from erniecore.api.settings import scalar


def yaml_text(outcome: Imported, source: str) -> str:
    """The file's content; ``compose.load`` reads it again."""
    lines = [f"# Settings of erniecore, imported from {source}; {outcome.toolkit}'s keys are behind each value."]
    lines += [f"# {note.kind}: {' '.join(str(note).split())}" for note in outcome.notes]
    section, groups = "", list[str]()
    for key, setting in outcome.settings.items():
        name, _, rest = key.partition(".")
        if name != section:
            lines.append("")
            section, groups = name, []
            if rest:
                lines.append(f"{name}:")
        *above, last = rest.split(".") if rest else [name]
        same = takewhile(lambda pair: pair[0] == pair[1], zip(above, groups, strict=False))
        shared, depth = len(list(same)), 1 if rest else 0
        lines += [f"{'  ' * (depth + n)}{above[n]}:" for n in range(shared, len(above))]
        lines += _lines(last, setting, depth + len(above))
        groups = above
    return "\n".join(lines) + "\n"


def _lines(last: str, setting: ImportedSetting, depth: int) -> Iterator[str]:
    comment = "  # " + (
        ", ".join(setting.keys) or (f"default of {setting.default_of}" if setting.default_of else "chosen")
    )
    indent = "  " * depth
    value = setting.value
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        yield f"{indent}{last}:{comment}"
        yield from (f"{indent}  - {_inline(item)}" for item in value)
    elif isinstance(value, Mapping) and value:
        yield f"{indent}{last}:{comment}"
        yield from (f"{indent}  {scalar(k)}: {scalar(v)}" for k, v in value.items())
    else:
        yield f"{indent}{last}: {scalar(value)}{comment}"


def _inline(item: Mapping[str, Any]) -> str:
    return scalar(item)


def write(path: Path, text: str) -> None:
    """Write a new file; raises ``UsageError`` for one that is there already, and where nothing can be written."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(
            "this file is there already", where=str(path), fix="remove it, or choose another name"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot write the file: {error.strerror}", where=str(path)) from error


def rows(outcome: Imported) -> list[tuple[str, str, str]]:
    """(foreign key, outcome, value or reason) for every key of the file."""
    found = []
    for old, new in outcome.mapped.items():
        values = [
            f"{key} = {scalar(outcome.settings[key].value)}" for key in new.split(", ") if key in outcome.settings
        ]
        found.append((old, "mapped", "; ".join(_short(value) for value in values)))
    found += [(old, "dropped", reason) for old, reason in outcome.dropped.items()]
    found += [
        (key, "unknown", f"did you mean {outcome.suggestions[key]}?" if key in outcome.suggestions else "")
        for key in outcome.unknown
    ]
    return found


def _short(text: str, limit: int = 90) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
