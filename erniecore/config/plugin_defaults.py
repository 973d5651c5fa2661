"""What a method has instead of the core's defaults, and what an adapter makes of it: below everything that is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erniecore.config.selection import Selection
from erniecore.config.tree import Leaf, Place, Tree

#: a default -> settings of its section that say the same in other words, and with which value (``None``: with any)
_INSTEAD: dict[str, dict[str, Any]] = {
    "train.warmup_ratio": {"warmup_steps": None, "schedule": "constant"},
    "train.accumulation": {"batch_size": None},
}


def plugin_defaults(chosen: Selection) -> Tree:
    """Section -> key -> value, whose place names the plugins."""
    method, adapter = chosen.plugins.get("method"), chosen.plugins.get("adapter")
    if method is None or any(source.complete for source in chosen.sources):
        return {}
    tree: dict[str, Tree] = {}
    began = _began_with(chosen.tree)
    for key, (value, _) in method.defaults.items():
        (section, name), place = key.split("."), f"default of method {method.name}"
        if adapter and key in adapter.factors:
            factor = adapter.factors[key][0]
            value, place = float(f"{value * factor:.6g}"), f"{place}, {factor:g} times by adapter {adapter.name}"
        if key in began:
            value, place = began[key], "default that the run began with"
        if not _said(chosen.tree.get(section, {}), _INSTEAD.get(key, {})):
            tree.setdefault(section, {})[name] = Leaf(value, Place(place))
    return {**tree}


def _began_with(tree: Tree) -> Mapping[str, Any]:
    """Defaults of a run that may be continued: it keeps those of the version that it began with."""
    run = tree.get("run")
    out, resume = (run.get(key) if isinstance(run, dict) else None for key in ("out", "resume"))
    if not isinstance(out, Leaf) or not out.value or (isinstance(resume, Leaf) and resume.value == "never"):
        return {}
    file = Path(out.text or str(out.value)) / "resolved.yaml"
    if not file.is_file():
        return {}
    from erniecore.config.began import defaults_in

    return defaults_in(file)


def _said(section: Leaf | Tree, instead: Mapping[str, Any]) -> bool:
    found = {k: n.value for k, n in section.items() if isinstance(n, Leaf)} if isinstance(section, dict) else {}
    return any(name in found and value in (None, found[name]) for name, value in instead.items())
