"""``ernie config``: settings with their sources, checked, explained, compared, as a schema for editors, and imported from
files of ERNIEKit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from erniecore.cli import render
from erniecore.cli.group import WordsCommand, new_group
from erniecore.cli.options import (
    NOTHING,
    Chosen,
    JsonOption,
    Words,
    settings_file,
    split_words,
    takes,
)
from erniecore.errors import Exit

if TYPE_CHECKING:
    from erniecore.migration.erniekit.convert import Outcome

app = new_group("Show, check, explain and import settings, each with its source.")


@app.command("show", cls=WordsCommand)
@takes()
def show(
    words: Words = None,
    chosen: Chosen = NOTHING,
    as_json: JsonOption = False,
) -> None:
    """Print every value with where it comes from."""
    from erniecore.config import compose
    from erniecore.config.resolved import scalar

    file, overrides = split_words(words)
    loaded = compose.load(file, overrides, chosen, require=())
    rows = [(".".join(path), value) for path, value in compose.values(loaded.settings)]
    if as_json:
        render.show_json({key: {"value": value, "source": loaded.provenance[key]} for key, value in rows})
    else:
        render.show_table(("key", "value", "source"), [(k, scalar(v), loaded.provenance[k]) for k, v in rows])


@app.command("check", cls=WordsCommand)
@takes()
def check(
    words: Words = None,
    chosen: Chosen = NOTHING,
    as_json: JsonOption = False,
) -> None:
    """Check the settings of a run; exit 2 with all problems when something is wrong."""
    from erniecore.config import compose

    file, overrides = split_words(words)
    loaded = compose.load(file, overrides, chosen)
    names = loaded.settings.plugins
    if as_json:
        render.show_json({"ok": True, "plugins": names})
    else:
        listed = ", ".join(f"{kind} {name}" for kind, name in names.items())
        render.show(f"{file or 'settings'}: ok ({listed})")


@app.command("schema", cls=WordsCommand)
@takes("model", "method", "adapter", "quantizer", "device", "parallel", "callback", "scorer")
def schema(
    words: Words = None,
    chosen: Chosen = NOTHING,
) -> None:
    """Print the JSON schema of a settings file for the chosen plugins."""
    import os

    from erniecore.config import compose, explain, selection

    file, overrides = split_words(words)
    layers = compose.read_layers(file, overrides, chosen, os.environ).tree
    render.show_json(explain.schema(selection.select(layers, ()).plugins))


@app.command("explain")
def explain(
    key: Annotated[str, typer.Argument(metavar="SECTION.KEY", help="For example train.batch_size.")],
    as_json: JsonOption = False,
) -> None:
    """Say what a setting means, its type, its default and who owns it; for a key of ERNIEKit, what it becomes."""
    from erniecore.config.explain import explain as look_up
    from erniecore.migration.erniekit import reference

    found = [reference.explanation(key)] if reference.knows(key) else [e.as_json() for e in look_up(key)]
    if as_json:
        render.show_json(found)
        return
    for e in found:
        rows = [(label, e[label]) for label in ("owner", "type", "default")]
        render.show(e["key"], *(f"  {label:<8} {text}" for label, text in rows), f"  {e['description']}")


@app.command("diff")
def diff(
    left: Annotated[str, typer.Argument(metavar="A", help="A settings file or run directory.")],
    right: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    as_json: JsonOption = False,
) -> None:
    """Compare two settings files or runs value by value, defaults included."""
    from erniecore.config import compose
    from erniecore.config.explain import differences
    from erniecore.config.resolved import scalar

    a, b = (compose.load(settings_file(word), environ={}, require=()) for word in (left, right))
    found = differences(a, b)
    if as_json:
        render.show_json([{"key": key, "a": x, "b": y} for key, x, y in found])
    elif not found:
        render.show("no differences")
    else:
        render.show_table(("key", left, right), [(key, _shown(x, scalar), _shown(y, scalar)) for key, x, y in found])


def _shown(value: Any, scalar: Any) -> str:
    return "-" if value is None else str(scalar(value))


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A YAML or JSON file of ERNIEKit.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Keys of ERNIEKit over those of the file.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="NEW.yaml", help="Where to write our settings.")] = None,
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="Where they will run: cpu has float32 alone.")
    ] = "cpu",
    allow_unknown: Annotated[
        bool, typer.Option("--allow-unknown", help="Leave keys out that ERNIEKit does not have.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Convert a file of ERNIEKit: what each key becomes, or why it becomes nothing.

    Keys that ERNIEKit does not have are listed with the nearest one; nothing is written then, and the exit code is 2.
    """
    from erniecore.migration.erniekit import reading, writing

    source = reading.read(file, overrides or [])
    outcome = reading.import_source(source, device)
    refused = bool(outcome.unknown) and not allow_unknown
    if as_json:
        render.show_json(outcome.as_json())
    else:
        _show_import(outcome)
    if refused and not as_json:
        reading.refuse_unknown(source, outcome)
    if refused:
        return int(Exit.USAGE)
    text = writing.yaml_text(outcome, str(file))
    if out is not None:
        writing.write(out, text)
        render.note(f"written: {out}")
    elif not as_json:
        render.show("", text.rstrip())
    return 0


def _show_import(outcome: Outcome) -> None:
    """The table for people: every key, then what they should know."""
    from erniecore.migration.erniekit import layer, writing

    render.show_table(("ERNIEKit", "", "erniecore"), writing.rows(outcome))
    command = layer.command_for(outcome)
    notes = [f"{notice.kind:<10} {notice}" for notice in outcome.notices]
    if command:
        notes.append(f"hint       the file is for {layer.ERNIEKIT_COMMAND[outcome.purpose]}: {command}")
    if notes:
        render.show("", *notes)
