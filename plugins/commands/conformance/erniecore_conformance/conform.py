"""``ernie conform KIND NAME``, ``ernie conform FILE``: the conformance checks of plugins, as a table or as JSON. Runs them;
what they say is in ``checks/``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from erniecore.api import Exit
from erniecore.api.command import JsonOption, show, show_json, show_table

if TYPE_CHECKING:
    from erniecore_conformance.check import Check
    from erniecore_conformance.runner import Outcome


def conform(
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND|FILE", help="Kind of plugin: model, method, …; or a Python file with plugins."),
    ],
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Its name, or distribution:name.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
    only: Annotated[list[str] | None, typer.Option("--check", metavar="CHECK", help="This check only; repeatable.")] = (
        None
    ),
    list_only: Annotated[bool, typer.Option("--list", help="List the checks; run nothing.")] = False,
) -> int:
    """Run the conformance checks on a plugin, or on those in a file.

    Exit 0: all passed; 9: a check failed.
    """
    from erniecore.api import UsageError
    from erniecore.api.testing import open_plugin_file

    if not kind.endswith(".py"):
        if name is None:
            raise UsageError("Missing argument 'NAME'", fix=f"ernie plugins --kind {kind} lists them")
        return _conform([(kind, name)], only or [], as_json, list_only)
    if name is not None:
        raise UsageError("a file needs no name: all its plugins are checked", found=name)
    with open_plugin_file(kind) as plugins:
        names = [(plugin.kind, f"{Path(kind).name}:{plugin.name}") for plugin in plugins.values()]
        return _conform(names, only or [], as_json, list_only)


def _conform(names: list[tuple[str, str]], only: list[str], as_json: bool, list_only: bool) -> int:
    """Check plugins, each a kind and a name."""
    from erniecore_conformance.runner import run_checks
    from erniecore_conformance.subjects import Subject

    chosen = [(kind, name, _checks(kind, name, only)) for kind, name in names]
    if list_only:
        rules = [{"check": check.name, "rule": check.rule} for _, _, checks in chosen for check in checks]
        show_json(rules) if as_json else show_table(["check", "rule"], [list(r.values()) for r in rules])
        return int(Exit.OK)
    reports, good = [], True
    for kind, name, checks in chosen:
        outcomes = run_checks(Subject.installed(kind, name), checks)
        passed = all(outcome.status != "failed" for outcome in outcomes)
        reports.append(
            {"kind": kind, "name": name, "ok": passed, "checks": [outcome.as_json() for outcome in outcomes]}
        )
        good = good and passed
        if not as_json:
            _show(kind, name, outcomes)
    if as_json:
        show_json(reports[0] if len(reports) == 1 else {"ok": good, "plugins": reports})
    return int(Exit.OK if good else Exit.PLUGIN)


def _checks(kind: str, name: str, only: list[str]) -> tuple[Check, ...]:
    """The checks of a plugin, or those that are asked for. Raises ``UsageError``."""
    from erniecore.api import UsageError
    from erniecore.api.command import did_you_mean
    from erniecore.api.testing import entries, find
    from erniecore_conformance.checks import checks_for

    entries(kind)  # an unknown kind is named before an unknown name
    find(kind, name)
    checks = checks_for(kind)
    for wanted in only:
        if wanted not in (known := [check.name for check in checks]):
            raise UsageError(
                f"no check {wanted!r} for kind {kind}",
                fix=did_you_mean(wanted, known, f"`ernie conform {kind} {name} --list` lists them"),
            )
    return tuple(check for check in checks if not only or check.name in only)


def _show(kind: str, name: str, outcomes: list[Outcome]) -> None:
    show_table(["result", "check", "detail"], [[o.status, o.check, o.detail] for o in outcomes])
    counts = {s: sum(o.status == s for o in outcomes) for s in ("passed", "failed", "skipped", "expected")}
    args = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
    show("", f"{kind} {name}: {args}")
