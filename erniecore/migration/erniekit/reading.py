"""ERNIEKit files as they lie on the disk: YAML or JSON, overrides behind them, and whether a file is one at all."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from erniecore.config import yaml
from erniecore.errors import ConfigError, PluginError, Problem, UsageError, shorten
from erniecore.kinds import KINDS, RUN_KINDS
from erniecore.migration.erniekit.convert import Outcome, convert
from erniecore.migration.erniekit.draft import Surroundings
from erniecore.migration.erniekit.table import TELLING
from erniecore.types import Cluster

#: sections of our settings: a file that has one is ours
OURS = frozenset(
    (
        "run",
        "data",
        "train",
        "eval",
        "checkpoint",
        "log",
        "extends",
        *RUN_KINDS,
        *(f"{k.name}s" for k in KINDS.values() if k.many),
    )
)
BAD_VALUE, UNKNOWN = "ERN-C030", "ERN-C031"
_OVERRIDE = re.compile(r"(?P<key>\w[\w.]*)=(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True)
class Source:
    """A file's content. ``lines``: of its keys; ``words``: key -> override as it was typed."""

    path: str
    data: Mapping[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)

    def problem(self, old: str, message: str) -> Problem:
        """A problem with the value of a key, at its place."""
        if old in self.words:
            return Problem("command line", 0, self.words[old], message)
        value = f" (got {shorten(self.data[old])})" if old in self.data else ""
        return Problem(self.path, self.lines.get(old, 0), old, message + value)


def is_erniekit(data: Any) -> bool:
    """Whether a parsed file is ERNIEKit's: flat, with a key that only ERNIEKit has, and no section of ours."""
    return isinstance(data, dict) and bool(TELLING & set(data)) and not OURS & set(data)


def is_override(word: str) -> bool:
    """Whether ``key=value`` overrides a key of ERNIEKit: it names no section of ours."""
    match = _OVERRIDE.fullmatch(word)
    return match is not None and match["key"].partition(".")[0] not in OURS


def read(path: Path, overrides: Sequence[str] = ()) -> Source:
    """A file with ``key=value`` words on top.

    Raises:
        UsageError: no such file, or one of erniecore's own. ConfigError: neither YAML nor JSON.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"cannot read the file: {reason}", where=str(path)) from error
    document = _json(text, str(path)) if path.suffix == ".json" else yaml.parse(text, str(path))
    if OURS & set(document.data):
        found = ", ".join(sorted(OURS & set(document.data)))
        raise UsageError(
            "this file has settings of erniecore already", where=str(path), found=found, next=f"ernie run {path}"
        )
    source = Source(str(path), document.data, {str(p[0]): n for p, n in document.lines.items() if len(p) == 1})
    return with_overrides(source, overrides)


def _json(text: str, source: str) -> yaml.Document:
    """A JSON object; the line of a key is where its name first stands."""
    try:
        data = json.loads(text)
    except ValueError as error:
        line = getattr(error, "lineno", 0)
        raise ConfigError([Problem(source, line, "", f"no JSON: {error}")]) from error
    if not isinstance(data, dict):
        raise ConfigError([Problem(source, 1, "", f"must be an object of keys (got {shorten(data)})")])
    lines: dict[yaml.Path, int] = {}
    for key in data:
        place = text.find(json.dumps(key, ensure_ascii=False))
        lines[(key,)] = text.count("\n", 0, place) + 1 if place >= 0 else 0
    return yaml.Document(data, lines)


def with_overrides(source: Source, overrides: Sequence[str]) -> Source:
    """``source`` with ``key=value`` words over its values; raises ``UsageError`` for a word that is none."""
    data, words = dict(source.data), dict(source.words)
    for word in overrides:
        match = _OVERRIDE.fullmatch(word)
        if match is None:
            raise UsageError(f"{word!r} is not key=value", fix="override keys of ERNIEKit such as max_steps=10")
        data[match["key"]] = yaml.parse_value(match["value"], f"command line: {word}")
        words[match["key"]] = word
    return Source(source.path, data, source.lines, words)


def surroundings(data: Mapping[str, Any], device: str = "cpu") -> Surroundings:
    """What the conversion looks at besides the file: the device's dtypes, and the model directory's config.json."""
    return Surroundings(device, _dtypes(device), _config_json(data.get("model_name_or_path")))


def _dtypes(device: str) -> frozenset[str]:
    """Of an installed device; nothing of another one."""
    from erniecore import registry
    from erniecore.host import assemble

    try:
        plugin = registry.load("device", device)
    except PluginError:
        return frozenset()
    opened = assemble({"device": plugin}).hook.ernie_open_device(config=plugin.Config(), cluster=Cluster())
    return frozenset(opened.dtypes)


def _config_json(path: Any) -> Mapping[str, Any] | None:
    if not isinstance(path, str):
        return None
    try:
        content = json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def import_source(source: Source, device: str = "cpu") -> Outcome:
    """The outcome for a file; problems are those of its values.

    Raises ``ConfigError`` for values that mean nothing in ERNIEKit either, all of them together.
    """
    outcome = convert(source.data, surroundings(source.data, device))
    if outcome.problems:
        raise ConfigError([source.problem(old, text) for old, text in outcome.problems.items()], code=BAD_VALUE)
    return outcome


def refuse_unknown(source: Source, outcome: Outcome) -> None:
    """Raise ``ConfigError`` that names each unknown key, with the nearest known one."""
    if outcome.unknown:
        problems = []
        for key in outcome.unknown:
            close = outcome.suggestions.get(key)
            hint = f"; did you mean {close}?" if close else ""
            problems.append(source.problem(key, f"ERNIEKit has no such key and ignores it{hint}"))
        fix = "correct or remove it, or `ernie config import --allow-unknown --out NEW.yaml` leaves it out"
        raise ConfigError(problems, code=UNKNOWN, fix=fix)
