"""Writes the generated pages of the documentation, or checks that they are up to date.

    python docs/generate.py --write      after a change of hooks, commands, settings, errors or plugins
    python docs/generate.py --check      exit 1 with the names of stale pages (the test suite runs this)

Each page is a function that returns its text; nothing here is written by hand twice.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import typer

from erniecore import errors, hookspecs, registry
from erniecore.accelerators import AcceleratorPlugin, Profile
from erniecore.accelerators.profile import ABILITIES
from erniecore.cli.manual import help_pages
from erniecore.config import reference
from erniecore.data import codes
from erniecore.engine.exporting import fastdeploy_contract, serving_contract
from erniecore.kinds import KINDS
from erniecore.migration.erniekit import reference as erniekit

ROOT = Path(__file__).parents[1]
NOTICE = reference.NOTICE


def hooks_page() -> str:
    """Every hook with its exact arguments and its contract."""
    lines = [NOTICE + "# Hooks", "", inspect.getdoc(hookspecs) or ""]
    for title, specs in (("Build hooks", hookspecs.BuildSpecs), ("Lifecycle hooks", hookspecs.LifecycleSpecs)):
        lines += ["", f"## {title}", "", inspect.getdoc(specs) or ""]
        for name, function in vars(specs).items():
            if name.startswith("ernie_"):
                arguments = [a for a in inspect.signature(function).parameters if a != "self"]
                lines += ["", f"### {name}({', '.join(arguments)})", "", inspect.getdoc(function) or ""]
    return "\n".join(lines) + "\n"


def kinds_page() -> str:
    """The kinds of plugin."""
    lines = [NOTICE + "# Kinds of plugin", "", inspect.getdoc(sys.modules["erniecore.kinds"]) or "", ""]
    lines += [
        "| kind = section | flag | entry-point group | build hooks | default | what it is |",
        "|---|---|---|---|---|---|",
    ]
    for kind in KINDS.values():
        hooks = ", ".join(f"`{h}`" for h in kind.hooks) or "–"
        flag = f"`{kind.flag}`" if kind.flag else "–"
        lines.append(f"| `{kind.name}` | {flag} | `{kind.group}` | {hooks} | {kind.default or '–'} | {kind.summary} |")
    return "\n".join(lines) + "\n"


def contract_page() -> str:
    """What exports are checked against."""
    lines = [NOTICE + "# What servers expect of a model directory", ""]
    lines += [
        "`ernie model check DIR --contract hf|fastdeploy` compares a directory with these rules; exports are compared"
    ]
    lines += ["by themselves. Each rule names its source.", ""]
    groups = {
        "Contract `hf`: the public layout, for transformers and for FastDeploy": serving_contract.RULES,
        "Contract `fastdeploy`: both of its layouts; the public one keeps the rules above too": fastdeploy_contract.SHARED,
        "Contract `fastdeploy`: the Paddle layout": fastdeploy_contract.PADDLE,
    }
    for title, rules in groups.items():
        lines += [f"## {title}", "", "| rule | what must hold | who asks for it |", "|---|---|---|"]
        lines += [*(f"| `{rule.name}` | {rule.text} | {rule.source} |" for rule in rules), ""]
    return "\n".join(lines)


def errors_page() -> str:
    """Exit codes and error codes."""
    lines = [NOTICE + "# Errors and exit codes", "", "## Exit codes", "", "| code | name |", "|---|---|"]
    lines += [f"| {int(e)} | {e.name.lower()} |" for e in errors.Exit]
    lines += ["", "## Error codes", "", "| code | exit | class | meaning |", "|---|---|---|---|"]
    classes = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, errors.ErnieError)]
    for cls in sorted(classes, key=lambda c: c.code):
        summary = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
        lines.append(f"| {cls.code} | {int(cls.exit_code)} | `{cls.__name__}` | {summary} |")
    lines += ["", "Narrower codes, with the exit code of their class:", "", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {text} |" for code, text in sorted(errors.CODES.items())]
    lines += ["", "## Codes of data files and rows", "", inspect.getdoc(codes) or "", ""]
    lines += ["| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {text} |" for code, text in sorted(codes.MEANINGS.items())]
    return "\n".join(lines) + "\n"


def cli_page() -> str:
    """Every command with its help text."""
    lines = [NOTICE + "# Command line", ""]
    for path, text in help_pages(width=110):
        lines += ["", f"{'#' * min(6, 1 + len(path.split()))} {path}", "", "```text", text.rstrip(), "```"]
    return "\n".join(lines) + "\n"


def devices_page() -> str:
    """The profiles of the accelerators."""
    lines = [NOTICE + "# Devices", "", "Abilities that a device may lack, and that other plugins ask for:", ""]
    lines += [f"* `{name}`: {text}" for name, text in ABILITIES.items()]
    for entry in sorted(registry.entries("device"), key=lambda e: e.name):
        plugin = registry.load("device", entry.name)
        if isinstance(plugin, AcceleratorPlugin):
            lines += _profile_lines(plugin.profile)
    return "\n".join(lines) + "\n"


def _profile_lines(profile: Profile) -> list[str]:
    packages = ", ".join(f"`{name}` ({what})" for name, what in profile.packages)
    excluded = ", ".join(f"`{name}`" for name in profile.excludes)
    lines = ["", f"## {profile.name}: {profile.title}", "", f"Evidence: {profile.evidence}.", ""]
    lines += [f"* packages: {packages}" + (f"; not beside {excluded}" if excluded else "")]
    lines += [
        f"* install: `{profile.install}`",
        f"* Paddle's name: `{profile.place}`; collectives: {profile.collectives}",
    ]
    lines += [f"* cards are listed by `{profile.monitor}` and chosen with `{profile.visible}`"]
    lines += [f"* dtypes: {', '.join(sorted(profile.dtypes))}"]
    lines += [f"* lacks `{ability}`: {instead}" for ability, instead in sorted(profile.lacks.items())]
    lines += ["", "| variable | value | why |", "|---|---|---|"]
    for name, variable in sorted(profile.variables.items()):
        only = " (only with `device.repeatable`)" if variable.deterministic else ""
        lines.append(f"| `{name}` | `{variable.value}` | {variable.why}{only} |")
    if profile.cards:
        lines += ["", "| card | memory | dense TFLOP/s | memory TB/s | source |", "|---|---|---|---|---|"]
    for name, card in profile.cards.items():
        rates = ", ".join(f"{dtype} {rate:g}" for dtype, rate in card.tflops.items())
        lines.append(f"| {name} | {card.memory / 1e9:g} GB | {rates} | {card.bandwidth / 1e12:g} | {card.source} |")
    return lines


def capability_table() -> str:
    """The plugins installed by ``make install``, for the README."""
    lines = ["| kind | name | what it is | distribution |", "|---|---|---|---|"]
    for kind in KINDS:
        for entry in sorted(registry.entries(kind), key=lambda e: e.name):
            if entry.distribution.startswith("erniecore"):
                lines.append(f"| {kind} | `{entry.name}` | {_summary(kind, entry)} | `{entry.distribution}` |")
    return "\n".join(lines) + "\n"


def _summary(kind: str, entry: registry.Entry) -> str:
    """One line about a plugin; a command is a function, and its docstring is its help."""
    if kind != "command":
        return registry.load(kind, entry.name).summary
    module, _, name = entry.target.partition(":")
    return (inspect.getdoc(getattr(import_module(module), name)) or "").partition("\n")[0].rstrip(".")


def readme() -> str:
    """README.md with a fresh capability table between its markers."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    start, end = "<!-- plugins:start -->\n", "<!-- plugins:end -->"
    head, rest = text.split(start)
    return head + start + "\n" + capability_table() + "\n" + end + rest.split(end, 1)[1]


PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/hooks.md": hooks_page,
    "docs/reference/kinds.md": kinds_page,
    "docs/reference/devices.md": devices_page,
    "docs/reference/errors.md": errors_page,
    "docs/reference/serving-contract.md": contract_page,
    "docs/reference/cli.md": cli_page,
    "docs/reference/erniekit-keys.md": lambda: NOTICE + erniekit.markdown(),
    "docs/reference/settings.md": lambda: NOTICE + reference.markdown(),
    "README.md": readme,
}


def main() -> int:
    """Write or check all pages; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true")
    mode.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    stale = []
    for name, page in PAGES.items():
        path, text = ROOT / name, page()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if arguments.write:
                path.write_text(text, encoding="utf-8")
    if arguments.check and stale:
        typer.echo(f"stale: {', '.join(stale)}; run `make docs`", err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
