"""Where a new run begins: a proposal, a recipe of a model, a settings file of ours or of another toolkit, or another run."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from erniecore_runs.settings import hyperparameters

from erniecore.api import UsageError
from erniecore.api.installation import loadable
from erniecore.api.settings import importer_of, recipes, scalar
from erniecore_webui.actions import printed_json
from erniecore_webui.drafts import Told, check_paths, draft_file, told_of
from erniecore_webui.settings_files import check_size
from erniecore_webui.site import Site
from erniecore_webui.yaml_edits import changed, read, value_at

_START = "# {about}\nmodel: {{path: {model}}}\nmethod: {{name: {method}}}\n{adapter}data:\n  train: [{data}]\n{more}"
STARTS = ("sft", "lora", "dpo", "pt")
#: of a recipe: about the published model, or what every recipe has
_NOT_OURS = ("published", "model")
#: what the page itself says
_PAGES = ("run.out", "run.name", "run.resume")


def start_text(name: str, about: str, model: str, data: str) -> str:
    """Settings to begin with."""
    adapter = "adapter: {name: lora, rank: 16, alpha: 32}\n" if name in ("lora", "dpo") else ""
    method = name if name in ("dpo", "pt") else "sft"
    more = "train: {epochs: 1, batch_size: 4}\n"
    places = {"model": _scalar(model), "data": _scalar(data) if data else ""}
    return _START.format(about=about, method=method, adapter=adapter, more=more, **places)


def _scalar(text: str) -> str:
    """As YAML; quoted where a character may mean something."""
    return text if re.fullmatch(r"[\w./-]+", text) else json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe that a model plugin ships: settings of its model."""

    model: str
    size: str
    text: str

    @property
    def name(self) -> str:
        """Of its plugin and its own."""
        return f"{self.model}/{self.size}"

    @property
    def about(self) -> str:
        """The comment at its top, on one line."""
        lines = takewhile(lambda line: line.startswith("#"), self.text.splitlines())
        return " ".join(line.lstrip("# ") for line in lines)


def all_recipes() -> list[Recipe]:
    """The recipes of the installed model plugins, in order."""
    found = (Recipe(plugin.name, *pair) for plugin in loadable("model") for pair in recipes(plugin).items())
    return sorted(found, key=lambda recipe: (recipe.model, recipe.size))


def recipe_text(name: str, tokenizer: str, data: str) -> str:
    """Settings that train a new model of a recipe from random weights.

    Raises:
        UsageError: there is no such recipe.
    """
    known = {recipe.name: recipe for recipe in all_recipes()}
    if name not in known:
        raise UsageError("there is no such recipe", found=name, expected="one of " + ", ".join(known))
    recipe = known[name]
    model = {"name": recipe.model, "size": recipe.size, "tokenizer": _scalar(tokenizer)}
    settings: dict[str, Any] = {"model": model, "method": {"name": "pt"}, "data": {"train": [data] if data else []}}
    for section, content in read(recipe.text).items():
        if section not in _NOT_OURS and isinstance(content, Mapping):
            settings[section] = {**settings.get(section, {}), **content}
    lines = [f"# {recipe.name}: {recipe.about}"]
    return "\n".join(lines) + "\n" + _blocks(settings)


def cloned(path: Path) -> str:
    """What somebody set for a run, without where it wrote; ``""``: its settings cannot be read."""
    sections: dict[str, dict[str, Any]] = {}
    for setting in hyperparameters(path)[0]:
        section, *rest = setting.key.split(".")
        if setting.source == "default" or not rest or setting.key in _PAGES:
            continue
        content = sections.setdefault(section, {})
        for name in rest[:-1]:
            content = content.setdefault(name, {})
        content[rest[-1]] = setting.value
    return _blocks(sections)


def _blocks(sections: Mapping[str, Mapping[str, Any]]) -> str:
    return "".join(f"{section}:\n" + _block(content, 1) for section, content in sections.items())


def _block(content: Mapping[str, Any], level: int) -> str:
    pad = "  " * level
    return "".join(
        f"{pad}{key}:\n{_block(value, level + 1)}" if isinstance(value, Mapping) else f"{pad}{key}: {_line(value)}\n"
        for key, value in content.items()
    )


def _line(value: Any) -> str:
    """Text stands as it was written."""
    return scalar(value) if isinstance(value, list) else str(value)


def toolkit_of(settings: Mapping[str, Any]) -> str:
    """The importer that reads these settings, where they are another toolkit's; empty: they are ours, or nobody's."""
    try:
        found = importer_of(settings, "settings") if settings else None
    except UsageError:
        return ""
    return found.name if found else ""


@dataclass(frozen=True, slots=True)
class Import:
    """What became of another toolkit's file.

    Attributes:
        text: settings of ours; empty: there are none. toolkit: as it calls itself.
        rows: (its key, ``mapped``, ``dropped`` or ``unknown``, what it became or why it became nothing).
        notes: what else to know.
    """

    text: str = ""
    toolkit: str = ""
    rows: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[Told, ...] = ()


def imported(site: Site, text: str, *, without_unknown: bool) -> Import:
    """Convert settings of another toolkit by ``ernie config import``; ``without_unknown``: leave out keys that it has not."""
    try:
        check_size(text)
        settings = read(text)
        importer = toolkit_of(settings)
        check_paths(site, settings, (site.home,))
    except UsageError as error:
        return Import(problems=(told_of(error.fields()),))
    if not importer:
        return Import(problems=(Told("ERN-C001", "no installed importer recognizes these settings"),))
    with draft_file(site, text) as source:
        target = source.with_name(f"{secrets.token_hex(8)}.yaml")
        try:
            more = ["--allow-unknown"] if without_unknown else []
            result = site.actions.asked("config", "import", str(source), "--out", str(target), *more, "--json")
            made = target.read_text(encoding="utf-8") if target.is_file() else ""
        finally:
            target.unlink(missing_ok=True)
    found = printed_json(result.output)
    if not isinstance(found, dict) or "mapped" not in found:
        fault = found.get("error") if isinstance(found, dict) else None
        lines = [told_of(fault)] if isinstance(fault, dict) else [Told("", result.output.strip()[:2000])]
        return Import(problems=tuple(line.renamed(str(source), "settings") for line in lines))
    for key in _PAGES:
        if made and value_at(read(made), key.split(".")) is not None:
            made = changed(made, key, None)
    notes = tuple(f"{', '.join(n['keys'])}: {n['text']}" if n["keys"] else n["text"] for n in found.get("notes", ()))
    return Import(made.replace(str(source), importer), found["toolkit"], tuple(_rows(found)), notes)


def _rows(found: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    settings, suggestions = found["settings"], found.get("suggestions", {})
    for key, ours in found["mapped"].items():
        yield key, "mapped", ", ".join(f"{o}: {_shown(settings[o])}" if o in settings else o for o in ours.split(", "))
    yield from ((key, "dropped", reason) for key, reason in found["dropped"].items())
    yield from ((key, "unknown", suggestions.get(key, "")) for key in found["unknown"])


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
    return text if len(text) < 200 else text[:199] + "…"
