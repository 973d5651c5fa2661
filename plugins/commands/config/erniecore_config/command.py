"""``ernie config``: settings with their sources, checked, explained, compared, as a schema for editors, and imported from
files of other toolkits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from erniecore.api import Exit
from erniecore.api.command import (
    NOTHING,
    Arguments,
    Chosen,
    JsonOption,
    MultiValueCommand,
    flag_names,
    new_group,
    note,
    settings_file,
    show_json,
    show_table,
    split_arguments,
    takes,
)
from erniecore.api.command import show as print_lines

if TYPE_CHECKING:
    from erniecore.api.importer import ForeignKeys, Imported

#: types of another toolkit's keys for people
FOREIGN_TYPES = {
    "flag": "true or false", "whole": "integer", "number": "number", "text": "text", "list": "list with commas",
    "words": "words", "any": "anything",
}  # fmt: skip

app = new_group("Show, check, explain and import settings, each with its source.")


@app.command("show", cls=MultiValueCommand)
@takes()
def show(
    args: Arguments = None,
    chosen: Chosen = NOTHING,
    as_json: JsonOption = False,
) -> None:
    """Print every value with where it comes from."""
    from erniecore.api.settings import load, scalar, values

    file, overrides = split_arguments(args)
    loaded = load(file, overrides, chosen, require=())
    rows = [(".".join(path), value) for path, value in values(loaded.settings)]
    _note(loaded.notes)
    if as_json:
        show_json({key: {"value": value, "source": loaded.provenance[key]} for key, value in rows})
    else:
        show_table(("key", "value", "source"), [(k, scalar(v), loaded.provenance[k]) for k, v in rows])


@app.command("check", cls=MultiValueCommand)
@takes()
def check(
    args: Arguments = None,
    chosen: Chosen = NOTHING,
    as_json: JsonOption = False,
) -> None:
    """Check the settings of a run; exit 2 with all problems when something is wrong."""
    from erniecore.api.settings import load

    file, overrides = split_arguments(args)
    loaded = load(file, overrides, chosen)
    names = loaded.settings.plugins
    _note(loaded.notes)
    if as_json:
        show_json({"ok": True, "plugins": names})
    else:
        listed = ", ".join(f"{kind} {name}" for kind, name in names.items())
        print_lines(f"{file or 'settings'}: ok ({listed})")


def _note(notes: Sequence[str]) -> None:
    for text in notes:
        note(f"note: {text}")


@app.command("schema", cls=MultiValueCommand)
@takes(*flag_names())
def schema(
    args: Arguments = None,
    chosen: Chosen = NOTHING,
) -> None:
    """Print the JSON schema of a settings file for the chosen plugins."""
    import os

    from erniecore.api.settings import read_sources, select
    from erniecore_config import explain

    file, overrides = split_arguments(args)
    sources = read_sources(file, overrides, chosen, os.environ).sources
    show_json(explain.schema(select(sources, ()).plugins))


@app.command("init", cls=MultiValueCommand)
@takes(*flag_names())
def init(
    args: Arguments = None,
    chosen: Chosen = NOTHING,
    out: Annotated[Path | None, typer.Option("--out", metavar="NEW.yaml", help="Where to write it.")] = None,
) -> None:
    """Write a settings file with every key of the chosen plugins: its default, its type and what it means."""
    from erniecore.api.settings import load, scalar
    from erniecore_config import all_settings, imported_text

    file, overrides = split_arguments(args)
    loaded = load(file, overrides, chosen)
    _note(loaded.notes)
    flags = [f"--{name.replace('_', '-')} {scalar(value)}" for name, value in chosen.items() if value]
    text = all_settings.text_of(loaded, " ".join(["ernie config init", *map(str, args or ()), *flags]))
    if out is None:
        print_lines(text.rstrip())
    else:
        imported_text.write(out, text)
        note(f"written: {out}")


@app.command("explain")
def explain(
    key: Annotated[str, typer.Argument(metavar="SECTION.KEY", help="For example train.batch_size.")],
    as_json: JsonOption = False,
) -> None:
    """Say what a setting means, its type, its default and who owns it; for a key of another toolkit, what it becomes."""
    from erniecore.api.settings import tables
    from erniecore_config.explain import explain as look_up

    foreign = [] if "." in key else [_explain_foreign(table, key) for table in tables() if key in table.keys]
    found = foreign or [e.as_json() for e in look_up(key)]
    if as_json:
        show_json(found)
        return
    for e in found:
        rows = [(label, e[label]) for label in ("owner", "type", "default")]
        print_lines(e["key"], *(f"  {label:<8} {text}" for label, text in rows), f"  {e['description']}")


def _explain_foreign(table: ForeignKeys, name: str) -> dict[str, str]:
    """What becomes of a key of another toolkit, in the shape of our own explanations."""
    from erniecore.api.settings import scalar

    key = table.keys[name]
    text = f"becomes {key.new}" if key.new else "becomes nothing"
    return {
        "key": name,
        "owner": f"{table.toolkit} (`ernie config import`)",
        "type": FOREIGN_TYPES[key.type],
        "default": "–" if key.default is None else scalar(key.default),
        "description": f"{text}: {key.note}" if key.note else text,
    }


@app.command("diff")
def diff(
    left: Annotated[str, typer.Argument(metavar="A", help="A settings file or run directory.")],
    right: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    as_json: JsonOption = False,
) -> None:
    """Compare two settings files or runs value by value, defaults included."""
    from erniecore.api.settings import load, scalar
    from erniecore_config.explain import differences

    a, b = (load(settings_file(word), environ={}, require=()) for word in (left, right))
    found = differences(a, b)
    if as_json:
        show_json([{"key": key, "a": x, "b": y} for key, x, y in found])
    elif not found:
        print_lines("no differences")
    else:
        show_table(("key", left, right), [(key, _shown(x, scalar), _shown(y, scalar)) for key, x, y in found])


def _shown(value: Any, scalar: Any) -> str:
    return "-" if value is None else str(scalar(value))


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A YAML or JSON file of another toolkit.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Keys of that toolkit over those of the file.")
    ] = None,
    toolkit: Annotated[
        str | None,
        typer.Option("--from", metavar="NAME", help="Importer; default: the one that recognizes the file."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="NEW.yaml", help="Where to write our settings.")] = None,
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="Where they will run: cpu has float32 alone.")
    ] = "cpu",
    allow_unknown: Annotated[
        bool, typer.Option("--allow-unknown", help="Leave keys out that the toolkit does not have.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Convert a file of another toolkit: what each key becomes, or why it becomes nothing.

    Keys that the toolkit does not have are listed with the nearest one; nothing is written then, and the exit code is 2.
    """
    from erniecore.api.installation import load as load_plugin
    from erniecore.api.settings import import_file, importer_of, read, refuse_unknown, unrecognized
    from erniecore_config import imported_text

    source = read(file, overrides or [])
    importer = load_plugin("importer", toolkit) if toolkit else importer_of(source.data, str(file))
    if importer is None:
        raise unrecognized(file)
    outcome = import_file(source, importer, device)
    refused = bool(outcome.unknown) and not allow_unknown
    if as_json:
        show_json(outcome.as_json())
    else:
        _show_import(outcome)
    if refused and not as_json:
        refuse_unknown(source, outcome)
    if refused:
        return int(Exit.USAGE)
    text = imported_text.yaml_text(outcome, str(file))
    if out is not None:
        imported_text.write(out, text)
        note(f"written: {out}")
    elif not as_json:
        print_lines("", text.rstrip())
    return 0


def _show_import(outcome: Imported) -> None:
    """The table for people: every key, then what they should know."""
    from erniecore_config import imported_text

    show_table((outcome.toolkit, "", "erniecore"), imported_text.rows(outcome))
    notes = [f"{note.kind:<10} {note}" for note in outcome.notes]
    if outcome.command:
        notes.append(f"hint       the file is for {outcome.purpose}: {outcome.command}")
    if notes:
        print_lines("", *notes)
