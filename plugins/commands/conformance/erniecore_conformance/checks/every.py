"""Checks for plugins of every kind: the object, its hooks and its settings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from erniecore.api import Plugin, Section, nearest
from erniecore.api.testing import KINDS, all_hooks
from erniecore_conformance.check import Check
from erniecore_conformance.exercise import USE
from erniecore_conformance.expect import NotApplicable, ensure, ensure_equal, ensure_raises
from erniecore_conformance.subjects import Subject

SPECS = all_hooks()
_KEBAB = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_POINT = re.compile(r"(?<=[0-9])\.(?=[0-9])")


def check_every_loads_in_clean_process(subject: Subject) -> None:
    """The entry point's target imports in a fresh interpreter and is a ``Plugin``."""
    ensure(not subject.probe["error"], f"importing {subject.target} failed: {subject.probe['error']}")
    ensure(subject.probe["is_plugin"], f"{subject.target} is not an instance of erniecore.api.Plugin")


def check_every_module_is_light(subject: Subject) -> None:
    """Importing the plugin's module pulls in neither paddle nor numpy."""
    heavy = _probe(subject)["heavy"]
    ensure(not heavy, f"importing {subject.target} imports {', '.join(heavy)}; import it inside the hooks")


def check_every_light_hooks_stay_light(subject: Subject) -> None:
    """Hooks that run before the device is open (plans, layouts, encoders, parsers) do not import paddle."""
    light = _probe(subject)["light"]
    if not light["used"]:
        raise NotApplicable(f"kind {subject.kind} has no hooks that run before the device is open")
    ensure(not light["paddle"], "a hook that runs before the device is open imported paddle")


def check_every_leaves_environment_alone(subject: Subject) -> None:
    """Importing the plugin and using its light hooks changes no environment variable."""
    ensure(
        not _probe(subject)["environment_changed"], "os.environ was changed; only Device.environment() may ask for it"
    )


def check_every_recreates_in_worker(subject: Subject) -> None:
    """A worker process that imports the target gets the same plugin: type, kind, name and settings schema."""
    probe, plugin = _probe(subject), subject.plugin
    here = f"{type(plugin).__module__}.{type(plugin).__qualname__}"
    ensure_equal(probe["type"], here, "type in a worker")
    ensure_equal((probe["kind"], probe["name"]), (plugin.kind, plugin.name), "kind and name in a worker")
    ensure_equal(probe["schema"], plugin.Config.model_json_schema(), "settings schema in a worker")
    ensure(not probe["light"].get("error"), f"its hooks fail in a worker: {probe['light'].get('error')}")


def check_every_name_equals_entry_point(subject: Subject) -> None:
    """``plugin.name`` and ``plugin.kind`` are those of the entry point."""
    ensure_equal(subject.plugin.name, subject.name, "plugin.name against the entry point")
    ensure_equal(subject.plugin.kind, subject.kind, "plugin.kind against the entry point's group")


def check_every_name_is_kebab(subject: Subject) -> None:
    """The name is lower-case kebab: letters and digits in words joined by single hyphens, a letter first; also a point
    between digits, but not where several plugins of a kind have sections under their names."""
    name = subject.plugin.name
    args = name if KINDS[subject.plugin.kind].many else _POINT.sub("", name)
    ensure(bool(_KEBAB.fullmatch(args)), f"name {name!r} is not lower-case kebab")


def check_every_has_summary(subject: Subject) -> None:
    """``summary`` is one line of 10 to 100 characters without a full stop."""
    text = getattr(subject.plugin, "summary", "")
    ensure(10 <= len(text) <= 100 and "\n" not in text, f"summary {text!r} is not one line of 10 to 100 characters")
    ensure(not text.endswith("."), f"summary {text!r} ends with a full stop")


def check_every_core_has_upper_bound(subject: Subject) -> None:
    """The distribution requires ``erniecore`` with an upper bound (``<``, ``<=``, ``~=`` or ``==``)."""
    if subject.requires is None:
        raise NotApplicable("a file without a distribution" if "plugin_files" in subject.target else "part of the core")
    core = [r for r in map(Requirement, subject.requires) if canonicalize_name(r.name) == "erniecore"]
    ensure(bool(core), "Requires-Dist names no erniecore")
    bounded = any(s.operator in ("<", "<=", "~=", "==") for r in core for s in r.specifier)
    ensure(bounded, f"Requires-Dist {', '.join(map(str, core))} has no upper bound")


def check_every_hooks_are_known(subject: Subject) -> None:
    """Every ``ernie_*`` method is marked ``@hookimpl`` and is a hook of ``erniecore.hookspecs``."""
    for name, function in _methods(subject.plugin):
        guess = nearest(name, SPECS)
        ensure(name in SPECS, f"{name} is not a hook" + (f"; did you mean {guess}?" if guess else ""))
        ensure(hasattr(function, "erniecore_impl"), f"{name} is not marked with @hookimpl")


def check_every_hook_arguments_match(subject: Subject) -> None:
    """Hook implementations take arguments of the specification only, by name."""
    for name, function in _hooks(subject.plugin):
        allowed = list(inspect.signature(SPECS[name]).parameters)[1:]
        for argument in inspect.signature(function).parameters.values():
            ensure(argument.kind is argument.POSITIONAL_OR_KEYWORD, f"{name}: argument {argument} is not a plain one")
            ensure(argument.name in allowed, f"{name} has no argument {argument.name!r}; it has {', '.join(allowed)}")


def check_every_hook_arguments_have_no_defaults(subject: Subject) -> None:
    """Hook implementations declare no default values: pluggy would never pass those arguments."""
    for name, function in _hooks(subject.plugin):
        for argument in inspect.signature(function).parameters.values():
            ensure(
                argument.default is argument.empty, f"{name}: {argument.name} has a default; it would never be passed"
            )


def check_every_implements_its_hooks(subject: Subject) -> None:
    """The build hooks of its kind are implemented."""
    missing = [hook for hook in KINDS[subject.kind].hooks if not callable(getattr(subject.plugin, hook, None))]
    ensure(not missing, f"a {subject.kind} must implement {', '.join(missing)}")


def check_every_keeps_to_its_kind(subject: Subject) -> None:
    """No build hook of another kind is implemented: a run has exactly one provider for each."""
    foreign = {hook: kind.name for kind in KINDS.values() for hook in kind.hooks if kind.name != subject.kind}
    found = [f"{hook} (of a {foreign[hook]})" for hook, _ in _hooks(subject.plugin) if hook in foreign]
    ensure(not found, f"a {subject.kind} must not implement {', '.join(found)}")


def check_every_capabilities_are_of_its_kind(subject: Subject) -> None:
    """``capabilities`` holds members of its kind's enumeration and nothing else."""
    allowed = KINDS[subject.kind].capabilities
    foreign = sorted(repr(str(given)) for given in subject.plugin.capabilities if type(given) is not allowed)
    known = ", ".join(f"{allowed.__name__}.{member.name}" for member in allowed) or "none"
    ensure(not foreign, f"a {subject.kind} has no capability {', '.join(foreign)}; it may have: {known}")


def check_every_config_is_frozen(subject: Subject) -> None:
    """``Config`` is a ``Section`` whose instances cannot be changed."""
    config = subject.plugin.Config
    ensure(issubclass(config, Section), "Config does not derive from erniecore.api.Section")
    ensure(bool(config.model_config.get("frozen")), "Config is not frozen")


def check_every_config_forbids_unknown_keys(subject: Subject) -> None:
    """``Config`` refuses keys that it does not have."""
    values = {**getattr(subject.plugin, "conformance_config", {}), "no_such_key": 1}
    ensure_raises(ValueError, lambda: subject.plugin.Config(**values), "Config(no_such_key=1)")


def check_every_config_is_described(subject: Subject) -> None:
    """Every field of ``Config`` has a description."""
    bare = [name for name, field in subject.plugin.Config.model_fields.items() if not (field.description or "").strip()]
    ensure(not bare, f"Config fields without a description: {', '.join(bare)}")


def check_every_config_defaults_are_valid(subject: Subject) -> None:
    """``Config`` accepts its own defaults, also after a round trip through JSON."""
    config = subject.config()
    again = type(config).model_validate_json(config.model_dump_json())
    ensure_equal(again, config, "Config after a round trip through JSON")


def check_every_is_stateless(subject: Subject) -> None:
    """Using every hook twice leaves the attributes of the plugin and its class as they were."""
    if subject.kind not in USE:
        raise NotApplicable(f"kind {subject.kind} cannot be used without a user")
    before = _attributes(subject.plugin)
    for _ in range(2):
        USE[subject.kind](subject)
    after = _attributes(subject.plugin)
    changed = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
    ensure(not changed, f"attributes changed by use: {', '.join(changed)}")


def _probe(subject: Subject) -> dict[str, Any]:
    if subject.probe["error"] or not subject.probe["is_plugin"]:
        raise NotApplicable("it does not load (see every_loads_in_clean_process)")
    return subject.probe


def _methods(plugin: Plugin) -> Iterator[tuple[str, Any]]:
    for name in dir(plugin):
        value = getattr(plugin, name)
        if name.startswith("ernie_") and callable(value):
            yield name, value


def _hooks(plugin: Plugin) -> Iterator[tuple[str, Any]]:
    """Methods that are hooks as far as their names go."""
    return ((name, function) for name, function in _methods(plugin) if name in SPECS)


def _attributes(plugin: Plugin) -> dict[str, str]:
    """Every data attribute of the instance and of its classes below ``Plugin``, as text."""
    own = [c for c in type(plugin).__mro__ if issubclass(c, Plugin) and c.__module__ != "erniecore.plugin"]
    found = {f"{c.__name__}.{k}": v for c in own for k, v in vars(c).items()}
    found.update({f"self.{k}": v for k, v in vars(plugin).items()})
    return {k: repr(v) for k, v in found.items() if not callable(v) and not k.partition(".")[2].startswith("__")}


CHECKS = (
    Check(check_every_loads_in_clean_process, process=True),
    Check(check_every_module_is_light, process=True),
    Check(check_every_light_hooks_stay_light, process=True),
    Check(check_every_leaves_environment_alone, process=True),
    Check(check_every_recreates_in_worker, process=True),
    Check(check_every_name_equals_entry_point),
    Check(check_every_name_is_kebab),
    Check(check_every_has_summary),
    Check(check_every_core_has_upper_bound),
    Check(check_every_hooks_are_known),
    Check(check_every_hook_arguments_match),
    Check(check_every_hook_arguments_have_no_defaults),
    Check(check_every_implements_its_hooks),
    Check(check_every_keeps_to_its_kind),
    Check(check_every_capabilities_are_of_its_kind),
    Check(check_every_config_is_frozen),
    Check(check_every_config_forbids_unknown_keys),
    Check(check_every_config_is_described),
    Check(check_every_config_defaults_are_valid),
    Check(check_every_is_stateless),
)
