"""``ernie plugins``: what is installed. The list comes from metadata; ``check`` imports each plugin in its own process."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from erniecore_catalog import install_command
from erniecore_catalog.known import home_of

from erniecore import registry
from erniecore.cli import render
from erniecore.cli.group import new_group
from erniecore.cli.options import JsonOption
from erniecore.errors import ErnieError, Exit, PluginNotFound, did_you_mean
from erniecore.kinds import KINDS
from erniecore.plugin_entry import INCOMPATIBLE, OK, Entry

app = new_group(
    "What is installed: models, methods, devices, formats, callbacks.",
    no_args_is_help=False,
    invoke_without_command=True,
)
KindOption = Annotated[str | None, typer.Option("--kind", metavar="KIND", help="Only this kind, e.g. model.")]
#: modules that a plugin object must not bring in
HEAVY = ("paddle", "numpy")


@app.callback()
def default(context: typer.Context, as_json: JsonOption = False, kind: KindOption = None) -> None:
    """What is installed: models, methods, devices, formats, callbacks."""
    if context.invoked_subcommand is None:
        list_plugins(as_json=as_json, kind=kind)


@app.command("list")
def list_plugins(as_json: JsonOption = False, kind: KindOption = None) -> None:
    """List the installed plugins (the default)."""
    found = _entries(kind)
    if as_json:
        render.show_json([_as_json(e) for e in found])
    else:
        rows = [(e.kind, e.name, _status(e), f"{e.distribution} {e.version}", e.target) for e in found]
        render.show_table(("kind", "name", "status", "distribution", "target"), rows)


@app.command("info")
def info(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the plugin.")],
    kind: KindOption = None,
    as_json: JsonOption = False,
) -> None:
    """Describe a plugin: what it is, its hooks, capabilities and settings."""
    found = [_describe(e) for e in _named(name, kind)]
    if as_json:
        render.show_json(found)
        return
    for facts in found:
        settings = facts.pop("settings", [])
        rows = [f"  {k:<14} {', '.join(v) if isinstance(v, list) else v}" for k, v in facts.items() if v]
        render.show(f"{facts['kind']} {facts['name']}", *rows[2:])
        for s in settings:
            render.show(f"  {s['key']}: {s['type']}, default {s['default']}", f"      {s['description']}")


@app.command("check")
def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="All when left out.")] = None,
    kind: KindOption = None,
    as_json: JsonOption = False,
) -> int:
    """Import each plugin in a process of its own; exit 9 when one is broken."""
    from concurrent.futures import ThreadPoolExecutor

    chosen = [e for name in names for e in _named(name, kind)] if names else _entries(kind)
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(_check, chosen))
    if as_json:
        render.show_json(results)
    else:
        rows = [(r["kind"], r["name"], r["status"], r["message"]) for r in results]
        render.show_table(("kind", "name", "status", ""), rows)
    return int(Exit.OK if all(r["status"] == OK for r in results) else Exit.PLUGIN)


def probe(kind: str, name: str) -> None:
    """What ``check`` runs in a child process: load, assemble, and say on the last line of stdout what happened."""
    try:
        found = registry.load_object(registry.find(kind, name)) if kind == "command" else registry.load(kind, name)
        if kind != "command":
            from erniecore.host import assemble

            assemble({kind: found})
        heavy = [m for m in HEAVY if m in sys.modules and kind != "command"]
        message = f"imports {' and '.join(heavy)} with its plugin object" if heavy else ""
        result = {"status": "heavy" if heavy else OK, "message": message}
    except ErnieError as error:
        result = {"status": "broken", "message": str(error)}
    print("\n" + json.dumps(result))


def _check(entry: Entry) -> dict[str, str]:
    head = {"kind": entry.kind, "name": entry.name, "distribution": entry.distribution, "version": entry.version}
    if entry.status != OK:
        return {**head, "status": entry.status, "message": _status(entry)}
    import subprocess

    code = "import sys; from erniecore.cli.plugins import probe; probe(*sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, entry.kind, entry.name], capture_output=True, text=True)
    try:
        return {**head, **json.loads(done.stdout.strip().splitlines()[-1])}
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return {**head, "status": "broken", "message": f"the process ended with {done.returncode}: {last}"}


def _entries(kind: str | None) -> list[Entry]:
    return registry.entries(kind) if kind else registry.all_entries()


def _named(name: str, kind: str | None) -> Sequence[Entry]:
    every = _entries(kind)
    found = [e for e in every if name in (e.name, f"{e.distribution}:{e.name}")]
    if not found:
        names = sorted({e.name for e in every})
        homes = {home_of(k, name) for k in KINDS} - {""}
        raise PluginNotFound(
            f"no plugin {name!r} is installed",
            expected="one of " + ", ".join(names),
            fix=did_you_mean(name, names),
            next=install_command(homes.pop()) if homes else "ernie plugins",
        )
    return found


def _as_json(entry: Entry) -> dict[str, Any]:
    names = ("kind", "name", "distribution", "version", "status", "target", "requires_core")
    return {n: getattr(entry, n) for n in names}


def _status(entry: Entry) -> str:
    return f"needs erniecore {entry.requires_core}" if entry.status == INCOMPATIBLE else entry.status


def _describe(entry: Entry) -> dict[str, Any]:
    facts = _as_json(entry)
    if entry.kind == "command":
        return facts
    from erniecore.config.describe import section_keys

    plugin = registry.load(entry.kind, f"{entry.distribution}:{entry.name}" if entry.distribution else entry.name)
    kind = KINDS[entry.kind]
    section = f"{kind.section}.{entry.name}" if kind.section and kind.many else kind.section or kind.name
    facts["summary"] = plugin.summary
    facts["hooks"] = sorted(n for n in dir(plugin) if n.startswith("ernie_"))
    facts["capabilities"] = sorted(str(capability) for capability in plugin.capabilities)
    facts["settings"] = [e.as_json() for e in section_keys(entry.name, section, plugin.Config)]
    return facts
