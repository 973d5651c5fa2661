"""What a setting means, where two runs differ, and the JSON schema of a settings file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from erniecore.api import Section, UsageError
from erniecore.api.adapter import AdapterPlugin
from erniecore.api.installation import loadable
from erniecore.api.method import MethodPlugin
from erniecore.api.settings import (
    CORE_SECTIONS,
    KINDS,
    MANY,
    RUN_KINDS,
    Explanation,
    Known,
    LoadedSettings,
    composed,
    current_key,
    section_keys,
    values,
)


def explain(key: str) -> list[Explanation]:
    """What ``section.key`` means, once for every installed plugin that has it.

    A retired key is explained as what it is called now. Raises ``UsageError`` with the nearest key when nobody has it.
    """
    key = current_key(key)
    kind = key.removesuffix(".name")
    if kind in RUN_KINDS and key != kind:
        return [Explanation(key, "erniecore", "text", KINDS[kind].default or "", f"The plugin: {KINDS[kind].summary}.")]
    found = [e for owner, section, cls in owners() for e in section_keys(owner, section, cls) if e.key == key]
    if found:
        return [*found, *instead(key)]
    known = sorted({e.key for owner, section, cls in owners() for e in section_keys(owner, section, cls)})
    close = Known(known).suggest(key)
    inside = [k for k in known if k.startswith(key + ".")]
    raise UsageError(
        f"no such setting: {key}",
        expected=", ".join(inside),
        fix=f"did you mean {close}?" if close and not inside else "",
        next=f"ernie config explain {close}" if close and not inside else "ernie config show",
    )


def instead(key: str) -> Iterable[Explanation]:
    """What methods have instead of the core's default of ``key``, and what adapters make of that, with the source."""
    for plugin in loadable("method"):
        if isinstance(plugin, MethodPlugin) and key in plugin.defaults:
            value, source = plugin.defaults[key]
            yield Explanation(key, f"method {plugin.name}", "default", f"{value:g}", source)
    for plugin in loadable("adapter"):
        if isinstance(plugin, AdapterPlugin) and key in plugin.factors:
            factor, source = plugin.factors[key]
            yield Explanation(key, f"adapter {plugin.name}", "default", f"{factor:g} times the method's", source)


def owners() -> Iterable[tuple[str, str, type[Section]]]:
    """(owner, section, class) of the core and of every installed plugin that a run can use; broken ones are left out."""
    for name, cls in CORE_SECTIONS.items():
        yield "erniecore", name, cls
    sections = {kind: section for section, kind in MANY.items()}
    for kind in (*RUN_KINDS, *sections):
        for plugin in loadable(kind):
            section = f"{sections[kind]}.{plugin.name}" if kind in sections else kind
            yield f"{kind} {plugin.name}", section, plugin.Config


def differences(left: LoadedSettings, right: LoadedSettings) -> list[tuple[str, Any, Any]]:
    """(key, value left, value right) where two runs differ; a key that one side does not have is ``None`` there."""
    a, b = ({".".join(path): value for path, value in values(side.settings)} for side in (left, right))
    return [(key, a.get(key), b.get(key)) for key in dict.fromkeys([*a, *b]) if a.get(key) != b.get(key)]


def schema(plugins: Mapping[str, Any]) -> dict[str, Any]:
    """JSON schema of a settings file for a selection of plugins (kind -> plugin), e.g. for an editor's completion."""
    result = composed(plugins).model_json_schema()
    result["title"] = "erniecore settings"
    result.pop("required", None)
    properties: dict[str, Any] = result["properties"]
    del properties["plugins"]
    properties["extends"] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    for kind in RUN_KINDS:
        if kind not in plugins:
            properties[kind] = {"type": "null", "description": KINDS[kind].summary}
            continue
        section = plugins[kind].Config.model_json_schema(ref_template="#/$defs/{model}")
        result.setdefault("$defs", {}).update(section.pop("$defs", {}))
        section.setdefault("properties", {})["name"] = {"type": "string", "description": KINDS[kind].summary}
        properties[kind] = {"anyOf": [{"type": "string"}, section], "description": KINDS[kind].summary}
    for name, kind in MANY.items():
        sections = {p.name: p.Config.model_json_schema() for p in plugins.get(kind, ())}
        properties[name] = {"anyOf": [{"type": "array"}, {"type": "object", "properties": sections}]}
    source = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Source"}]}
    for split in ("train", "eval"):
        result["$defs"]["DataSection"]["properties"][split]["items"] = source
    return result
