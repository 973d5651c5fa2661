"""Which plugins are installed, and loading one of them by kind and name. Knows nothing of what plugins do.

One stevedore manager per question enumerates, checks and loads. Everything but ``load`` and ``load_object`` reads
distribution metadata only, so a broken plugin disturbs no run that does not name it.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

from erniecore_catalog import install_command
from erniecore_catalog.known import home_of, known, same_plugin
from erniecore_catalog.offers import Offer, State, offers, state
from stevedore.named import NamedExtensionManager

import erniecore
from erniecore.errors import (
    PluginBroken,
    PluginConflict,
    PluginError,
    PluginIncompatible,
    PluginNotFound,
    UsageError,
    article,
    did_you_mean,
    nearest,
)
from erniecore.kinds import KINDS
from erniecore.plugin_entry import CONFLICT, INCOMPATIBLE, OK, Entry

if TYPE_CHECKING:
    from erniecore.plugin import Plugin


class KindManager(NamedExtensionManager):  # type: ignore[type-arg,misc,unused-ignore]
    """stevedore's manager of one kind: enumerates what is installed, checks it, and loads the plugins that are named.

    It differs from stevedore's own managers in two things. The metadata come from :mod:`erniecore_catalog.offers`, because
    stevedore's disk cache is stale after a re-install and forgets the distribution. And a plugin is checked
    (``ERNIE_PLUGINS``, version range, rivals of the same name) before it is imported;
    ``EnabledExtensionManager`` checks what it has imported already.

    Attributes:
        entries: every installed plugin of the kind by name, with its status; those that ``ERNIE_PLUGINS`` hides are
            left out.
    """

    def __init__(
        self, kind: str, names: Sequence[str] = (), known: Entry | None = None, installed: State | None = None
    ) -> None:
        """Enumerate a kind and load ``names`` of it; ``known``: the one entry to load, which was enumerated before;
        ``installed``: what is installed, where the caller has asked already.

        Raises ``UsageError`` for an unknown kind, and whatever importing a plugin raises.
        """
        if kind not in KINDS:
            expected = "one of " + ", ".join(KINDS)
            raise UsageError(f"no such kind of plugin: {kind!r}", expected=expected, fix=did_you_mean(kind, KINDS))
        self.entries = (
            [known]
            if known
            else list(_entries(kind, os.environ.get("ERNIE_PLUGINS", ""), installed or state(), _files()))
        )
        self._known, self._wanted = known, frozenset(names)
        super().__init__(
            KINDS[kind].group, names, on_load_failure_callback=_reraise, on_missing_entrypoints_callback=None
        )

    def list_entry_points(self) -> list[EntryPoint]:
        """The entry points that may be loaded: they fit this core, and nobody else has their name."""
        return [e.point for e in self.entries if e.status == OK or (e.status == CONFLICT and e is self._known)]

    def _load_plugins(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Nothing to load, nothing to check: a list of names compares no versions."""
        return super()._load_plugins(*args, **kwargs) if self._wanted else []


def _reraise(manager: object, point: EntryPoint, error: BaseException) -> None:
    """stevedore's callback for an import that failed; by itself it would log the error and go on."""
    raise error


def entries(kind: str) -> list[Entry]:
    """The installed plugins of one kind by name, from metadata alone. Raises ``UsageError`` for an unknown kind.

    ``ERNIE_PLUGINS=a,b`` (names or distributions) hides all others but the core's own and those of plugin files.
    """
    return KindManager(kind).entries


def all_entries() -> list[Entry]:
    """The installed plugins of every kind, in the order of kinds."""
    installed = state()
    return [entry for kind in KINDS for entry in KindManager(kind, installed=installed).entries]


def _files() -> str:
    """The active plugin files as text; see ``plugin_files``."""
    return os.environ.get("ERNIE_PLUGIN_FILES", "")


@lru_cache(maxsize=64)
def _entries(kind: str, only: str, installed: State, files: str) -> tuple[Entry, ...]:
    """``installed`` is the key only, as in :func:`erniecore_catalog.offers.offers`; ``files``, too."""
    allowed = {a.strip() for a in only.split(",") if a.strip()}
    found: dict[tuple[str, str, str], Offer] = {}
    for offer in offers(KINDS[kind].group, installed):
        dist = _normal(offer.distribution)
        if not allowed or dist == "erniecore" or {offer.point.name, dist} & allowed:
            found.setdefault((offer.point.name, dist, offer.point.value), offer)
    for offer in _offers_of_files(kind) if files else ():
        found[offer.point.name, offer.distribution, offer.point.value] = offer
    counts = Counter(name for name, _, _ in found)
    return tuple(_entry(kind, found[key], counts[key[0]] > 1) for key in sorted(found))


def _offers_of_files(kind: str) -> Iterator[Offer]:
    """The plugins of one kind in the active plugin files, whose names are distributions and whose hashes are versions."""
    from erniecore.plugin_files import active, plugins_of

    for file in active():
        for attribute, plugin in plugins_of(file).items():
            if plugin.kind == kind:
                point = EntryPoint(plugin.name, f"{file.module}:{attribute}", KINDS[kind].group)
                yield Offer(point, file.distribution, file.version, ())


def _entry(kind: str, offer: Offer, rivals: bool) -> Entry:
    point, required = offer.point, _requires_core(offer.requires)
    entry = Entry(kind, point.name, point.value, offer.distribution, offer.version, required, rivals, point)
    return entry if entry.is_file else replace(entry, distribution=_normal(offer.distribution))


def _normal(name: str) -> str:
    """A distribution's name as PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _requires_core(requires: Iterable[str]) -> str:
    """The version range of erniecore among what a distribution requires, e.g. ``<0.2,>=0.1``; empty: any."""
    for line in requires:
        match = re.match(r"erniecore(?![-.\w])(?:\[.*?\])?([^;]*)(;.*)?$", line.strip(), re.IGNORECASE)
        if match and "extra ==" not in (match[2] or ""):
            return match[1].strip(" ()")
    return ""


def offered(kind: str, name: str) -> bool:
    """Whether a plugin of this kind and name is installed, or is one of ours that could be."""
    return any(entry.name == name for entry in entries(kind)) or bool(home_of(kind, name))


def find(kind: str, name: str) -> Entry:
    """The one usable entry for ``name`` or ``distribution:name``, still without importing it.

    Raises ``PluginNotFound``, ``PluginConflict`` or ``PluginIncompatible``.
    """
    distribution, _, plain = name.rpartition(":")
    wanted = {_normal(distribution)} if distribution else set()
    matches = [e for e in entries(kind) if e.name == plain and (not wanted or _normal(e.distribution) in wanted)]
    if not matches:
        raise _not_found(kind, name, plain)
    if len(matches) > 1:
        raise PluginConflict(
            f"{len(matches)} installed plugins are called {kind} {plain!r}",
            found="; ".join(e.origin() for e in matches),
            fix="choose one: " + " or ".join(f"{e.distribution}:{plain}" for e in matches),
        )
    entry = matches[0]
    if entry.status == INCOMPATIBLE:
        raise PluginIncompatible(
            f"{kind} {plain!r} does not fit this erniecore",
            where=entry.origin(),
            found=f"erniecore {erniecore.__version__}",
            expected=f"erniecore {entry.requires_core}",
            next=install_command("erniecore", entry.distribution, option="--upgrade"),
        )
    return entry


def _not_found(kind: str, name: str, plain: str) -> PluginNotFound:
    names = sorted({e.name for e in entries(kind)})
    elsewhere = [e.kind for e in all_entries() if e.name == plain and e.kind != kind]
    ours = [name for of_kind, name in known() if of_kind == kind]
    close = plain if home_of(kind, plain) else same_plugin(kind, plain)
    close = close or nearest(plain, [*names, *ours], cutoff=0.7) or ""
    home = home_of(kind, close) if close not in names else ""
    if elsewhere and not home:
        other = KINDS[elsewhere[0]]
        fix = f"{plain!r} is {article(other.name)}, not {article(kind)}" + (
            f": {other.flag} {plain}" if other.flag else ""
        )
    else:
        meant = f"did you mean {close}?" if close not in ("", plain) else ""
        fix = f"{meant} it comes with {home}".strip() if home else meant
    return PluginNotFound(
        f"no {kind} plugin {name!r} is installed",
        kind=kind,
        expected="one of " + ", ".join(names) if names else f"an installed {kind} plugin; there is none",
        fix=fix,
        next=install_command(home) if home else f"ernie plugins --kind {kind}",
    )


def load(kind: str, name: str) -> Plugin:
    """The plugin object for ``name`` (or ``distribution:name``); imports that plugin and no other.

    Raises what :func:`find` raises, and ``PluginBroken`` when it cannot be imported or is not what it says.
    """
    return load_entry(find(kind, name))


def load_entry(entry: Entry) -> Plugin:
    """The plugin object of an entry, checked; raises ``PluginBroken``."""
    from erniecore.plugin import Plugin

    found = load_object(entry)
    if not isinstance(found, Plugin):
        what = f"the class {found.__name__}" if isinstance(found, type) else f"of type {type(found).__name__}"
        raise PluginBroken(f"{entry.target} is {what}", where=entry.origin(), expected="an instance of Plugin")
    says = (getattr(found, "kind", "?"), getattr(found, "name", "?"))
    if says != (entry.kind, entry.name):
        message = f"the plugin object calls itself {says[0]} {says[1]!r}"
        raise PluginBroken(message, where=entry.origin(), expected=f"{entry.kind} {entry.name!r}")
    _check_capabilities(found, entry)
    _check_section(found, entry)
    return found


def _check_capabilities(plugin: Plugin, entry: Entry) -> None:
    """Raises ``PluginBroken`` for a capability that the plugin's kind does not have."""
    allowed = KINDS[entry.kind].capabilities
    for given in plugin.capabilities:
        if type(given) is not allowed:
            member = next((f"{allowed.__name__}.{c.name}" for c in allowed if c == given), "")
            raise PluginBroken(
                f"{entry.kind} {entry.name!r} has a capability that no {entry.kind} can have",
                where=entry.origin(),
                found=repr(str(given)),
                expected="one of " + ", ".join(allowed)
                if len(allowed)
                else f"none: a {entry.kind} has no capabilities",
                fix=f"write {member}" if member else did_you_mean(str(given), [str(c) for c in allowed]),
            )


def _check_section(plugin: Plugin, entry: Entry) -> None:
    """Raises ``PluginBroken`` where ``Config`` does not answer what the engine asks of the sections of its kind."""
    from erniecore import sections

    name = KINDS[entry.kind].config
    if name and not issubclass(plugin.Config, sections.BASES[name]):
        raise PluginBroken(
            f"the settings of {entry.kind} {entry.name!r} do not derive from {name}",
            where=entry.origin(),
            found=plugin.Config.__name__,
            fix=f"from erniecore.api.{KINDS[entry.kind].layer or entry.kind} import {name}",
        )


def loadable(kind: str) -> Iterator[Plugin]:
    """Every installed plugin of a kind that loads, by name. The others are left out: a broken plugin, or two that share
    a name, disturb nobody who does not name them (``trial.py``)."""
    for entry in entries(kind):
        with suppress(PluginError):
            if entry.status == OK and _is_harmless(entry):
                yield load_entry(entry)


def _is_harmless(entry: Entry) -> bool:
    if entry.is_ours:
        return True
    from erniecore import trial

    return trial.is_harmless(entry, load_entry)


def harm(entry: Entry) -> str:
    """What importing a plugin does to a process; empty: nothing worse than an error with a name. See ``trial.harm``."""
    from erniecore import trial

    return trial.harm(entry, load_object if entry.kind == "command" else load_entry)


def load_object(entry: Entry) -> Any:
    """Import what an entry names, whatever it is. Raises ``PluginBroken`` with the cause chained."""
    try:
        return KindManager(entry.kind, [entry.name], entry)[entry.name].plugin
    except (Exception, SystemExit) as cause:
        raise PluginBroken(
            f"{entry.kind} {entry.name!r} cannot be imported: {type(cause).__name__}: {cause}",
            where=entry.origin(),
            fix="repair or remove that distribution; --debug shows the traceback",
        ) from cause
