"""``ernie conform KIND NAME``: the conformance checks of one plugin, as a table or as JSON. Runs them; what they say
is in ``checks/``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from erniecore.api import Exit
from erniecore.api.command import JsonOption, show, show_json, show_table

if TYPE_CHECKING:
    from erniecore_conformance.runner import Outcome


def conform(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Kind of plugin: model, method, device, …")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, or distribution:name.")],
    as_json: JsonOption = False,
    only: Annotated[list[str] | None, typer.Option("--check", metavar="CHECK", help="This check only; repeatable.")] = (
        None
    ),
    list_only: Annotated[bool, typer.Option("--list", help="Say what would be checked; run nothing.")] = False,
) -> int:
    """Run the conformance checks on a plugin.

    Exit 0: all passed; 9: a check failed.
    """
    from erniecore.api import UsageError
    from erniecore.api.command import did_you_mean
    from erniecore.api.testing import entries, find
    from erniecore_conformance.checks import checks_for
    from erniecore_conformance.runner import run_checks
    from erniecore_conformance.subjects import Subject

    entries(kind)  # an unknown kind is named before an unknown name
    find(kind, name)
    checks = checks_for(kind)
    for wanted in only or ():
        if wanted not in (known := [check.name for check in checks]):
            raise UsageError(
                f"no check {wanted!r} for kind {kind}",
                fix=did_you_mean(wanted, known, f"`ernie conform {kind} {name} --list` lists them"),
            )
    checks = tuple(check for check in checks if not only or check.name in only)
    if list_only:
        rules = [{"check": check.name, "rule": check.rule} for check in checks]
        show_json(rules) if as_json else show_table(["check", "rule"], [list(r.values()) for r in rules])
        return int(Exit.OK)
    outcomes = run_checks(Subject.installed(kind, name), checks)
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    if as_json:
        body = [outcome.as_json() for outcome in outcomes]
        show_json({"kind": kind, "name": name, "ok": not failed, "checks": body})
    else:
        _show(kind, name, outcomes)
    return int(Exit.PLUGIN if failed else Exit.OK)


def _show(kind: str, name: str, outcomes: list[Outcome]) -> None:
    show_table(["result", "check", "detail"], [[o.status, o.check, o.detail] for o in outcomes])
    counts = {s: sum(o.status == s for o in outcomes) for s in ("passed", "failed", "skipped", "expected")}
    args = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
    show("", f"{kind} {name}: {args}")
