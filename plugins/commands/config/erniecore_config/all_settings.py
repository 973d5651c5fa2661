"""A settings file with every key of the chosen plugins: its default, its type, what it means, and whose default it is."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from erniecore.api import Plugin, Section
from erniecore.api.settings import CORE_SECTIONS, KINDS, MANY, RUN_KINDS, LoadedSettings, scalar, section_keys

#: columns of a comment
_WIDTH = 126


def text_of(loaded: LoadedSettings, command: str) -> str:
    """The file, whose settings are ``loaded``; ``command`` is what has written it."""
    dump: dict[str, Any] = loaded.settings.model_dump(mode="json")
    head = f"Every setting of this run with its default, written by `{command}`. Set what you change, delete the rest."
    lines = [*_comment(head, ""), *_comment("A run needs model.path, data.train and mostly train.learning_rate.", "")]
    for section, cls in CORE_SECTIONS.items():
        lines += ["", *_comment(_about(cls), ""), f"{section}:", *_keys(loaded, section, cls, dump[section], "  ")]
    for kind in RUN_KINDS:
        if (plugin := loaded.plugins.get(kind)) is not None:
            about = f"{KINDS[kind].summary[:1].upper()}{KINDS[kind].summary[1:]}. {plugin.name}: {plugin.summary}."
            lines += ["", *_comment(about, ""), f"{kind}:", f"  name: {scalar(plugin.name)}"]
            lines += _keys(loaded, kind, plugin.Config, dump[kind], "  ")
    for section, kind in MANY.items():
        lines += _many(loaded, section, loaded.plugins.get(kind) or [], dump.get(section) or {})
    return "\n".join(lines) + "\n"


def _many(loaded: LoadedSettings, section: str, plugins: list[Plugin], dump: Mapping[str, Any]) -> Iterator[str]:
    """A section with one mapping per plugin."""
    if not plugins:
        return
    yield from ("", f"{section}:")
    for plugin in plugins:
        yield from _comment(f"{plugin.summary}.", "  ")
        keys = list(_keys(loaded, f"{section}.{plugin.name}", plugin.Config, dump.get(plugin.name) or {}, "    "))
        yield from [f"  {scalar(plugin.name)}:", *keys] if keys else [f"  {scalar(plugin.name)}: {{}}"]


def _keys(
    loaded: LoadedSettings, section: str, cls: type[Section], dump: Mapping[str, Any], indent: str
) -> Iterator[str]:
    for found in section_keys("", section, cls):
        name = found.key.rpartition(".")[2]
        source = loaded.provenance.get(found.key, "default")
        of = f"; {source}" if source.startswith("default of") else ""
        yield from _comment(f"{found.description} [{found.type}{of}]", indent)
        yield f"{indent}{name}: {scalar(dump[name])}"


def _about(cls: type[Section]) -> str:
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


def _comment(text: str, indent: str) -> list[str]:
    start = f"{indent}# "
    return textwrap.wrap(text, _WIDTH, initial_indent=start, subsequent_indent=start, break_on_hyphens=False)
