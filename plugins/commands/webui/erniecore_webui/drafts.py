"""Settings that somebody is writing: what ``ernie plan`` says of them, their command, and the start of their run.

The command sees a file below the directory of the runs, as it does for a run; so errors and numbers here are those of a terminal.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from erniecore.api import UsageError
from erniecore.api.command import store_text
from erniecore.api.settings import MANY, RUN_KINDS
from erniecore_webui.actions import ERNIE, printed_json
from erniecore_webui.settings_files import check_size
from erniecore_webui.site import Site
from erniecore_webui.yaml_edits import flat, leaves, read

#: plans of drafts at a time, of all browsers
_AT_A_TIME = threading.Semaphore(2)
#: what was said of the newest draft, and seconds for which that is believed
_LAST: dict[tuple[Path, str], tuple[float, Verdict]] = {}
_BELIEVED = 10.0
#: what a problem says that has no key, because nothing was written
_NOBODY = re.compile(r"\bno (\w+)(?: function)? is selected")
_NEITHER = "a path below the directory of the runs, of the models or of commands"


@dataclass(frozen=True, slots=True)
class Told:
    """Something wrong, as the command says it: code, what, and the remedy; ``next``: a command to run."""

    code: str
    text: str
    fix: str = ""
    next: str = ""

    def renamed(self, old: str, new: str) -> Told:
        """The same about something of another name."""
        return replace(self, text=self.text.replace(old, new), fix=self.fix.replace(old, new))


def told_of(error: Mapping[str, Any]) -> Told:
    """One of the errors that commands print as JSON, and that :meth:`ErnieError.fields` gives."""
    message = str(error["message"]) + (f" (got {error['found']})" if error.get("found") else "")
    expected = f"; expected {error['expected']}" if error.get("expected") else ""
    return Told(str(error["code"]), message + expected, str(error.get("fix", "")), str(error.get("next", "")))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the command says of a draft.

    Attributes:
        plan: what ``ernie plan --json`` prints; empty: something is wrong.
        errors: key -> what is wrong with it. general: what is wrong with no single key.
    """

    plan: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, list[Told]] = field(default_factory=dict)
    general: tuple[Told, ...] = ()

    def __str__(self) -> str:
        """Everything that is wrong, on one line."""
        about = [f"{key}: {told.text}" for key, found in self.errors.items() for told in found]
        return "; ".join([*about, *(told.text for told in self.general)])


def check_paths(site: Site, settings: Mapping[str, Any], places: tuple[Path, ...]) -> None:
    """Refuse settings that name a path outside of the roots; ``places``: what relative ones may be relative to.

    Raises:
        UsageError: one of their texts is such a path; ``where`` is its key.
    """
    roots = [site.root, site.home, *(Path(site.home, root).resolve() for root in site.models.roots)]
    if "run.out" in flat(settings):
        raise UsageError("the page itself says where a run writes", where="run.out", fix="leave it out; name the run")
    for section, content in settings.items():
        for key, value in content.items() if isinstance(content, Mapping) else [("", content)]:
            for text in leaves({key: value}):
                for place in places:
                    path = Path(os.path.expanduser(text)) if text.startswith("~") else place / text
                    if "\0" in text or not any(path.resolve().is_relative_to(root) for root in roots):
                        where = f"{section}.{key}" if key else section
                        raise UsageError("this path is not below a root", where=where, found=text, expected=_NEITHER)


@contextmanager
def draft_file(site: Site, text: str) -> Iterator[Path]:
    """A file with these settings, as long as the block runs."""
    directory = site.state / "drafts"
    directory.mkdir(exist_ok=True)
    path = directory / f"{secrets.token_hex(8)}.yaml"
    try:
        path.write_text(text, encoding="utf-8")
        yield path
    finally:
        path.unlink(missing_ok=True)


def judged(site: Site, text: str) -> Verdict:
    """Plan a draft by ``ernie plan``, in a process of its own."""
    try:
        check_size(text)
        settings = read(text)
        check_paths(site, settings, (site.home, site.state / "drafts"))
    except UsageError as error:
        return Verdict(errors={error.where: [told_of(error.fields())]} if "." in error.where else {},
                       general=() if "." in error.where else (told_of(error.fields()),))  # fmt: skip
    with draft_file(site, text) as path, _AT_A_TIME:
        result = site.actions.asked("plan", str(path), "--smaller", "--json")
    found = _verdict(result.output, str(path), flat(settings))
    _LAST.clear()
    _LAST[site.state, text] = time.monotonic(), found
    # a plan needs neither tokenizer nor rows, a run does
    missing = _missing(site, settings) if found.plan and "extends" not in settings else {}
    return Verdict(errors=missing) if missing else found


def _missing(site: Site, settings: Mapping[str, Any]) -> dict[str, list[Told]]:
    """What a run needs and a plan does not: key -> what is not there."""
    found: dict[str, list[Told]] = {}
    if not _has_tokenizer(settings):
        error = UsageError(
            "no tokenizer", fix="name its directory, or a model directory in model.path", code="ERN-C010"
        )
        found["model.tokenizer"] = [told_of(error.fields())]
    for key in ("data.train", "data.eval"):
        for name in source_paths(settings, key):
            # names of hubs, other remote files and patterns are looked up by the run
            if not re.search(r"^[a-z][a-z0-9+-]*:|[*?\[]", name) and not (site.home / name).exists():
                error = UsageError("the data file cannot be read", found=f"{name}: no such file", code="ERN-D002")
                found.setdefault(key, []).append(told_of(error.fields()))
    if not list(source_paths(settings, "data.train")):
        error = UsageError("there is no training data", fix="name a file of rows", code="ERN-D001")
        found["data.train"] = [told_of(error.fields())]
    return found


def source_paths(settings: Mapping[str, Any], key: str) -> Iterator[str]:
    """The paths of ``data.train`` or ``data.eval``, as they are written."""
    content = flat(settings).get(key)
    for source in content if isinstance(content, list) else [content]:
        path = source.get("path") if isinstance(source, Mapping) else source
        if path:
            yield str(path)


def last_judged(site: Site, text: str) -> Verdict:
    """What was said of these settings some seconds ago, else :func:`judged`."""
    when, told = _LAST.get((site.state, text), (0.0, Verdict()))
    return told if time.monotonic() < when + _BELIEVED else judged(site, text)


def _has_tokenizer(settings: Mapping[str, Any]) -> bool:
    values = flat(settings)
    name = str(values.get("model.name", ""))
    return any(values.get(key) for key in ("model.path", "model.tokenizer")) or "/" in name or Path(name).is_dir()


def _verdict(output: str, path: str, values: Mapping[str, Any]) -> Verdict:
    found = printed_json(output)
    if not isinstance(found, dict) or not found:
        return Verdict(general=(Told("", output.strip() or "ernie plan did not answer in time"),))
    if found.get("event") != "error":
        return Verdict(plan=found)
    error = found["error"]
    if "problems" not in error:
        where = str(error.get("where", ""))
        # an error about a file says its path
        named = (key for key, value in values.items() if value == where)
        key = next(named, "") or _key(where.rpartition(" ")[2])
        told = told_of(error).renamed(path, "settings")
        return Verdict(errors={key: [told]}) if key else Verdict(general=(told,))
    errors: dict[str, list[Told]] = {}
    general = []
    for problem in error["problems"]:
        key, line = _key(problem["key"]) or _left_out(problem["message"]), problem.get("line")
        ours = line and problem["source"].endswith(Path(path).name)
        # what comes from a recipe or another file says so
        place = f"line {line}: " if ours else f"{problem['source']}:{line}: " if line else ""
        message = f"{place}{problem['message']}"
        told = Told(error["code"], message, str(error.get("fix", "")), str(error.get("next", "")))
        if key:
            errors.setdefault(key, []).append(told)
        else:
            general.append(told)
    return Verdict(errors=errors, general=tuple(general))


def _key(name: str) -> str:
    """The setting that an error is about; a kind is the name of its plugin."""
    section, _, rest = re.sub(r"\[\d+\]$", "", name).partition(".")
    section = next((several for several, kind in MANY.items() if kind == section), section)
    if section in RUN_KINDS and not rest:
        return "model.path" if section == "model" else f"{section}.name"
    return name if rest else section if section in MANY else ""


def _left_out(message: str) -> str:
    """The setting that a problem misses; ``""`` where it is another problem."""
    found = _NOBODY.search(message)
    return _key(found[1]) if found else ""


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


def start(site: Site, text: str, name: str, when: str, after: Sequence[str] = ()) -> str:
    """Keep the settings and queue their run; the name of the task.

    Args:
        when: ``now``, ``queue`` (behind what waits for its device) or ``front`` (before it).
        after: tasks that must have ended well before.
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
        task = site.tasks.add(argv, f"run {name}", device=device, at_once=when == "now", after=after,
                              run=name)  # fmt: skip
    if when == "front":
        site.tasks.move(task.name, -1_000_000)
    return task.name
