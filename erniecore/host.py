"""How the selected plugins of one run are called: its own pluggy manager, checked when it is assembled.

A host belongs to one run and holds no settings. Which plugins take part was decided by the registry.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import pluggy

from erniecore.errors import ConfigError, PluginBroken, Problem
from erniecore.hookspecs import CLASSES, all_specifications, specification
from erniecore.kinds import KINDS
from erniecore.plugin import Plugin

#: Callbacks of the core itself; they are called before all other plugins.
BUILTIN_CALLBACKS = ("console", "events")


class Host:
    """The plugins of one run. ``hook`` calls them all (pluggy), :meth:`call` calls one of them."""

    def __init__(self, manager: pluggy.PluginManager, plugins: Sequence[Plugin]) -> None:
        self.manager = manager
        self.plugins = tuple(plugins)
        self.hook = manager.hook
        self._single: dict[tuple[int, str], tuple[Callable[..., Any], tuple[str, ...]]] = {}

    def call(self, plugin: Plugin, hook: str, **arguments: Any) -> Any:
        """Call one plugin's implementation of ``hook``; cheap enough for once per data row.

        Raises ``PluginBroken`` when the plugin has none.
        """
        key = (id(plugin), hook)
        if key not in self._single:
            found = [i for i in self.implementations(hook) if i.plugin is plugin]
            if not found:
                raise PluginBroken(f"{plugin.kind} {plugin.name!r} does not implement {hook}", where=_where(plugin))
            self._single[key] = (found[0].function, tuple(found[0].argnames))
        function, names = self._single[key]
        return function(**{n: arguments[n] for n in names})

    def implementations(self, hook: str) -> list[pluggy.HookImpl]:
        """Of a hook; none if it belongs to a kind that no plugin of this host is of."""
        return list(getattr(self.hook, hook).get_hookimpls()) if hasattr(self.hook, hook) else []

    def provide(self, **defaults: object) -> None:
        """Add the core's own implementations of hooks, each under its name, unless the host has them already."""
        for name, default in defaults.items():
            if not self.manager.has_plugin(name):
                self.manager.register(default, name)

    @contextmanager
    def listening(self, listeners: Sequence[object]) -> Iterator[None]:
        """Further objects with lifecycle hooks are called within the block, after all plugins."""
        for plugin in self.plugins:
            self.manager.unregister(plugin)
        for thing in (*listeners, *reversed(self.plugins)):  # pluggy calls the last registered first
            self.manager.register(thing, f"{thing.kind}:{thing.name}" if isinstance(thing, Plugin) else None)
        try:
            yield
        finally:
            for listener in listeners:
                self.manager.unregister(listener)

    def check_settings(self, settings: Any) -> list[Problem]:
        """Ask every plugin's ``ernie_check_settings``; all problems found, none raised."""
        problems: list[Problem] = []
        for implementation in self.hook.ernie_check_settings.get_hookimpls():
            try:
                implementation.function(**dict.fromkeys(implementation.argnames, settings))
            except ConfigError as error:
                problems += error.problems
        return problems


class _Manager(pluggy.PluginManager):
    """Asks pluggy, which looks thoroughly, only about what is marked or belongs to the object itself."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        own = vars(plugin) if hasattr(plugin, "__dict__") else ()
        return super().parse_hookimpl_opts(plugin, name) if name in own or name in _marked(type(plugin)) else None


#: class -> names whose values carry the mark of ``@hookimpl``, also below a ``staticmethod``
_MARKED: WeakKeyDictionary[type, frozenset[str]] = WeakKeyDictionary()


def _marked(cls: type) -> frozenset[str]:
    if cls not in _MARKED:
        values = [(name, value) for base in cls.__mro__ for name, value in vars(base).items()]
        _MARKED[cls] = frozenset(
            n for n, v in values if hasattr(v, "erniecore_impl") or hasattr(getattr(v, "__func__", v), "erniecore_impl")
        )
    return _MARKED[cls]


def assemble(plugins: Mapping[str, Plugin | Sequence[Plugin]], *, extra: Sequence[object] = ()) -> Host:
    """A host for one run.

    ``plugins`` maps a kind to its plugin, or plugins for kinds that take many; ``extra`` are further objects with hook
    implementations, e.g. the engine's ``trylast`` defaults. Raises ``PluginBroken`` when a hook is unknown, unmarked or
    missing, has wrong arguments or default values, or has two providers.
    """
    manager = _Manager("erniecore")
    ordered = _in_call_order(plugins)
    for specs in _specifications([*ordered, *extra]):
        manager.add_hookspecs(specs)
    for thing in extra:
        manager.register(thing)
    for plugin in reversed(ordered):  # pluggy calls the last registered first
        _check_hooks(manager, plugin)
        try:
            manager.register(plugin, f"{plugin.kind}:{plugin.name}")
        except (pluggy.PluginValidationError, ValueError) as cause:
            raise PluginBroken(" ".join(str(cause).split()), where=_where(plugin)) from cause
    host = Host(manager, ordered)
    for plugin in ordered:
        _check_providers(host, plugin)
    manager.check_pending()
    return host


def call_one(plugin: Plugin, hook: str, **arguments: Any) -> Any:
    """One plugin's implementation of ``hook``, outside of a run; cheap enough for once per data row.

    Raises ``PluginBroken`` when the plugin has none, or is not what a host accepts.
    """
    return _host_of(plugin).call(plugin, hook, **arguments)


def implements(plugin: Plugin, hook: str) -> bool:
    """Whether a plugin has an implementation of an optional hook."""
    return any(i.plugin is plugin for i in _host_of(plugin).implementations(hook))


@lru_cache(maxsize=256)
def _host_of(plugin: Plugin) -> Host:
    return assemble({plugin.kind: plugin})


def _in_call_order(plugins: Mapping[str, Plugin | Sequence[Plugin]]) -> list[Plugin]:
    """Built-in callbacks, then the run's plugins in the order of kinds, then other callbacks as given."""
    by_kind = {k: [p] if isinstance(p, Plugin) else list(p) for k, p in plugins.items()}
    callbacks = by_kind.pop("callback", [])
    builtin = [p for p in callbacks if p.name in BUILTIN_CALLBACKS]
    chosen = [p for kind in KINDS for p in by_kind.get(kind, ())]
    return builtin + chosen + [p for p in callbacks if p not in builtin]


def _specifications(plugins: Sequence[object]) -> Sequence[type]:
    """The hooks of the plugins' kinds and of the run; those of all kinds if a plugin implements others."""
    kinds = {plugin.kind for plugin in plugins if isinstance(plugin, Plugin)} | {"lifecycle"}
    found = [specification(kind) for kind in CLASSES if kind in kinds]
    known = all(any(hasattr(specs, name) for specs in found) for plugin in plugins for name in _hooks_of(plugin))
    return found if known else all_specifications()


def _hooks_of(plugin: object) -> list[str]:
    return [name for name in dir(plugin) if name.startswith("ernie_")]


def _check_hooks(manager: pluggy.PluginManager, plugin: Plugin) -> None:
    """Refuse hooks that pluggy would silently leave out or call with fewer arguments than they hope for."""
    for name in _hooks_of(plugin):
        method = getattr(plugin, name)
        if not hasattr(manager.hook, name):
            raise PluginBroken(f"no hook is called {name}", where=_where(plugin))
        if not hasattr(method, "erniecore_impl"):
            raise PluginBroken(f"{name} is not marked with @hookimpl", where=_where(plugin))
        given = inspect.signature(method).parameters.values()
        defaults = ", ".join(p.name for p in given if p.default is not p.empty)
        if defaults:
            raise PluginBroken(f"{name} declares defaults, which hooks never get", where=_where(plugin), found=defaults)


def _check_providers(host: Host, plugin: Plugin) -> None:
    """Exactly one provider of each build hook: the plugin that was selected for its kind."""
    kind = KINDS[plugin.kind]
    for name in kind.hooks:
        providers = [i.plugin for i in host.implementations(name)]
        if plugin not in providers:
            raise PluginBroken(f"{plugin.kind} {plugin.name!r} does not implement {name}", where=_where(plugin))
        others = [p for p in providers if getattr(p, "kind", None) != plugin.kind]
        if others or (len(providers) > 1 and not kind.many):
            where = ", ".join(_where(p) for p in providers if p is not plugin)
            raise PluginBroken(f"only {plugin.kind} {plugin.name!r} may implement {name}", where=where)


def _where(plugin: object) -> str:
    cls = type(plugin)
    return f"{cls.__module__}.{cls.__qualname__}"
