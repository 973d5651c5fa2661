"""The settings as a page of the documentation, made from the sections themselves.

Only plugins whose distribution is called erniecore… appear, so that the page does not depend on what else is installed.
"""

from __future__ import annotations

import inspect

from erniecore import registry
from erniecore.config.core import CORE_SECTIONS
from erniecore.config.describe import section_keys
from erniecore.kinds import KINDS, MANY, RUN_KINDS
from erniecore.sections import Section

_INTRO = """# Settings

A settings file is YAML 1.2: sections with keys. Values come in layers; a later one wins:
defaults of the core, [those of the method and the adapter](#defaults-of-methods-and-adapters), the model's recipe
(`model.size`), files named by `extends:`, the file, `ERNIE_SECTION__KEY` in the
environment, flags and `section.key=value` on the command line. `ernie config show` prints every value with its source.

The sections `run`, `data`, `train`, `eval`, `checkpoint` and `log` belong to the core. The sections `device`, `parallel`,
`model`, `adapter`, `quantizer` and `method` hold `name` (the plugin) and the keys of that plugin; `method: sft` is short
for `method: {name: sft}`. `callbacks`, `formats`, `rewards` and `schedules` hold one section per
plugin; `callbacks: [visualdl]` is short for `callbacks: {visualdl: {}}`. A data source
is a path or a mapping with `path`, `format`, `weight` and `epochs`.
"""


def markdown() -> str:
    """The page, without the notice that it is generated."""
    parts = [_INTRO]
    for name, cls in CORE_SECTIONS.items():
        parts.append(_section(f"## {name}", "erniecore", name, cls))
    sections = {kind: section for section, kind in MANY.items()}
    for kind in (*RUN_KINDS, *sections):
        parts.append(f"## {sections.get(kind, kind)}\n\nPlugins: {KINDS[kind].summary}.\n")
        for entry in registry.entries(kind):
            if not entry.distribution.startswith("erniecore"):
                continue
            plugin = registry.load(kind, entry.name)
            where = f"{sections[kind]}.{entry.name}" if kind in sections else kind
            parts.append(
                _section(f"### {kind} `{entry.name}`", entry.distribution, where, plugin.Config, plugin.summary)
            )
    return "\n".join([*parts, _plugin_defaults()])


def _plugin_defaults() -> str:
    """What methods have instead of the core's defaults, and what adapters make of it, each with its source."""
    lines = [
        "## Defaults of methods and adapters",
        "",
        "What a run has where nobody wrote anything; `ernie config show` calls it `default of method NAME`. An adapter",
        "multiplies it. `train.accumulation` is 1 where `train.batch_size` is written; there is no `train.warmup_ratio` where",
        "`train.warmup_steps` is written or the schedule is `constant`. Settings files of other toolkits bring their own.",
        "",
        "| key | plugin | value | source |",
        "|---|---|---|---|",
    ]
    for kind, sign in (("method", ""), ("adapter", "× ")):
        for entry in registry.entries(kind):
            if entry.distribution.startswith("erniecore"):
                plugin = registry.load(kind, entry.name)
                found = plugin.defaults if kind == "method" else plugin.factors
                lines += [
                    f"| `{k}` | {kind} `{entry.name}` | {sign}{v:g} | {_cell(s)} |" for k, (v, s) in found.items()
                ]
    return "\n".join([*lines, ""])


def _section(title: str, owner: str, section: str, cls: type[Section], summary: str = "") -> str:
    text = summary or (inspect.getdoc(cls) or "").split("\n\n")[0]
    lines = [title, "", text.rstrip(".") + "." + (f" From `{owner}`." if summary else ""), ""]
    keys = section_keys(owner, section, cls)
    if keys:
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        lines += [f"| `{e.key}` | {_cell(e.type)} | `{_cell(e.default)}` | {_cell(e.description)} |" for e in keys]
    else:
        lines.append("It has no keys but `name`." if section.count(".") == 0 else "It has no keys.")
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
