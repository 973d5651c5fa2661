"""Settings that somebody is writing: what ``ernie plan`` says of them, their command, and where a new run begins.

The command sees a file below the directory of the runs, as it does for a run; so errors and numbers here are those of a terminal.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from erniecore_runs.settings import hyperparameters

from erniecore.api import UsageError
from erniecore.api.command import store_text
from erniecore.api.settings import RUN_KINDS
from erniecore_webui.actions import ERNIE, printed_json
from erniecore_webui.site import Site
from erniecore_webui.yaml_edits import flat, leaves, read

#: characters of settings
MOST = 200_000
#: plans of drafts at a time, of all browsers
_AT_A_TIME = threading.Semaphore(2)
_NEITHER = "a path below the directory of the runs, of the models or of commands"
_START = "# {about}\nmodel: {{path: {model}}}\nmethod: {{name: {method}}}\n{adapter}data:\n  train: [{data}]\n{more}"
STARTS = ("sft", "lora", "dpo", "pt")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the command says of a draft.

    Attributes:
        plan: what ``ernie plan --json`` prints; empty: something is wrong.
        errors: key -> what is wrong with it. general: what is wrong with no single key.
    """

    plan: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    general: tuple[str, ...] = ()


def check_paths(site: Site, settings: Mapping[str, Any], places: tuple[Path, ...]) -> None:
    """Refuse settings that name a path outside of the roots; ``places``: what relative ones may be relative to.

    Raises:
        UsageError: one of their texts is such a path.
    """
    roots = [site.root, site.home, *(Path(site.home, root).resolve() for root in site.models.roots)]
    if "run.out" in flat(settings):
        raise UsageError("the page itself says where a run writes", where="run.out", fix="leave it out; name the run")
    for section, content in settings.items():
        for text in leaves({section: content}):
            for place in places:
                path = Path(os.path.expanduser(text)) if text.startswith("~") else place / text
                if "\0" in text or not any(path.resolve().is_relative_to(root) for root in roots):
                    raise UsageError("this path is not below a root", where=section, found=text, expected=_NEITHER)


def judged(site: Site, text: str) -> Verdict:
    """Plan a draft by ``ernie plan``, in a process of its own."""
    try:
        check_size(text)
        directory = site.state / "drafts"
        directory.mkdir(exist_ok=True)
        check_paths(site, read(text), (site.home, directory))
    except UsageError as error:
        return Verdict(general=(str(error),))
    path = directory / f"{secrets.token_hex(8)}.yaml"
    try:
        path.write_text(text, encoding="utf-8")
        with _AT_A_TIME:
            result = site.actions.asked("plan", str(path), "--json")
    finally:
        path.unlink(missing_ok=True)
    return _verdict(result.output, str(path), flat(read(text)))


def _verdict(output: str, path: str, values: Mapping[str, Any]) -> Verdict:
    found = printed_json(output)
    if not isinstance(found, dict) or not found:
        return Verdict(general=(output.strip() or "ernie plan did not answer in time",))
    if found.get("event") != "error":
        return Verdict(plan=found)
    error = found["error"]
    if "problems" not in error:
        parts = [str(error[name]) for name in ("message", "found", "expected", "fix") if error.get(name)]
        where = str(error.get("where", ""))
        # an error about a file says its path
        named = (key for key, value in values.items() if value == where)
        key = next(named, "") or _key(where.rpartition(" ")[2])
        message = f"{error['code']}: {'; '.join(parts)}".replace(path, "settings")
        return Verdict(errors={key: message}) if key else Verdict(general=(message,))
    errors: dict[str, str] = {}
    general = []
    for problem in error["problems"]:
        key, line = _key(problem["key"]), problem.get("line")
        message = (
            f"line {line}: {problem['message']}"
            if line and problem["source"].endswith(Path(path).name)
            else problem["message"]
        )
        if key:
            errors[key] = f"{errors[key]}; {message}" if key in errors else message
        else:
            general.append(message)
    return Verdict(errors=errors, general=tuple(general))


def _key(name: str) -> str:
    """The field that an error is about: ``data.train[0].path`` is ``data.train``, a kind is the name of its plugin."""
    section, _, rest = name.partition(".")
    if section in RUN_KINDS and not rest:
        return "model.path" if section == "model" else f"{section}.name"
    return f"{section}.{rest.partition('.')[0].partition('[')[0]}" if rest else ""


def check_size(text: str) -> None:
    """Raises ``UsageError`` for settings that nobody writes."""
    if len(text) > MOST:
        raise UsageError("these settings are too long", found=f"{len(text)} characters", expected=f"at most {MOST}")


def command_of(text: str, place: str, out: str) -> str:
    """The command line that says the same: settings as arguments, or their file where they name other files."""
    settings = read(text)
    if "extends" in settings or "plugins" in settings:
        return shlex.join(["ernie", "run", place, "--out", out])
    return shlex.join(["ernie", "run", *arguments(text), "--out", out])


def arguments(text: str) -> list[str]:
    """The settings of a text as ``section.key=value`` arguments; strings that look like numbers stay strings."""
    import yaml

    tree = yaml.compose(text, yaml.BaseLoader)
    found = []
    for section, content in tree.value if tree else ():
        pairs = content.value if isinstance(content, yaml.MappingNode) else [(yaml.ScalarNode("", "name"), content)]
        for key, node in pairs:
            value = _flow(node)
            if value not in ("", "null", "~") or key.value != "name":
                found.append(f"{section.value}.{key.value}={value}")
    return found


def _flow(node: Any) -> str:
    """A value of YAML on one line, its scalars as they were written."""
    if node.id == "mapping":
        return "{" + ", ".join(f"{_flow(key)}: {_flow(value)}" for key, value in node.value) + "}"
    if node.id == "sequence":
        return "[" + ", ".join(map(_flow, node.value)) + "]"
    return str(node.value) if node.style is None else json.dumps(node.value, ensure_ascii=False)


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


def cloned(path: Path) -> str:
    """What somebody set for a run, without where it wrote; ``""``: its settings cannot be read."""
    sections: dict[str, dict[str, Any]] = {}
    for setting in hyperparameters(path)[0]:
        section, *rest = setting.key.split(".")
        if setting.source == "default" or not rest or setting.key in ("run.out", "run.name", "run.resume"):
            continue
        content = sections.setdefault(section, {})
        for name in rest[:-1]:
            content = content.setdefault(name, {})
        content[rest[-1]] = setting.value
    return "".join(f"{section}:\n" + _block(content, 1) for section, content in sections.items())


def _block(content: Mapping[str, Any], level: int) -> str:
    pad = "  " * level
    return "".join(
        f"{pad}{key}:\n{_block(value, level + 1)}" if isinstance(value, dict) else f"{pad}{key}: {value}\n"
        for key, value in content.items()
    )


def start(site: Site, text: str, name: str, when: str) -> str:
    """Keep the settings and queue their run; the name of the task.

    Args:
        when: ``now``, ``queue`` (behind what waits for its device) or ``front`` (before it).
    Raises:
        UsageError: the settings or the name cannot be used; nothing was written then.
    """
    check_size(text)
    settings = read(text)
    device = settings.get("device") or "cpu"
    device = str(device.get("name") or "cpu") if isinstance(device, Mapping) else str(device)
    with site.naming():  # another tab's run of this name would begin with these settings
        out = site.new_directory("", name)
        if out.parent != site.root or name in ("models", "data", "settings"):
            raise UsageError("this is no name for a run", where=name)
        kept = site.root / "settings" / f"{name}.yaml"
        kept.parent.mkdir(exist_ok=True)
        check_paths(site, settings, (site.home, kept.parent))
        store_text(kept, text if text.endswith("\n") else text + "\n", "keeping the settings of a run")
        argv = [*ERNIE, "run", site.models.place(kept), "--out", site.models.place(out)]
        task = site.tasks.add(argv, f"run {name}", device="" if when == "now" else device, run=name)
    if when == "front":
        site.tasks.move(task.name, -1_000_000)
    return task.name
