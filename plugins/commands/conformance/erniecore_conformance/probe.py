"""The other side of a probe: runs in a process that has imported no plugin, and says what importing and using one does there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: What the server must never have imported: a probe tells whether its plugin does.
HEAVY = ("paddle", "numpy")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Do what ``request["action"]`` says; the result is JSON."""
    return _ACTIONS[request["action"]](request)


def _heavy() -> list[str]:
    return [name for name in HEAVY if name in sys.modules]


def _look(request: dict[str, Any]) -> dict[str, Any]:
    """Import the target, then use its hooks that must stay light."""
    import erniecore.api  # what plugins may import is not theirs
    from erniecore_conformance.subjects import Command, resolve

    before = set(_heavy())
    try:
        plugin = resolve(request["target"])
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    if request["kind"] == "command" and callable(plugin):
        plugin = Command.of(plugin, request["name"])
    facts: dict[str, Any] = {
        "error": "",
        "is_plugin": isinstance(plugin, erniecore.api.Plugin),
        "heavy": sorted(set(_heavy()) - before),
        "type": f"{type(plugin).__module__}.{type(plugin).__qualname__}",
        "kind": getattr(plugin, "kind", None),
        "name": getattr(plugin, "name", None),
    }
    if not facts["is_plugin"]:
        return facts
    facts["schema"] = plugin.Config.model_json_schema()
    environment = dict(os.environ)
    facts["light"] = _use_light_hooks(request)
    changed = dict(os.environ) != environment
    facts["environment_changed"] = changed and "paddle" not in sys.modules  # paddle sets variables of its own
    return facts


def _use_light_hooks(request: dict[str, Any]) -> dict[str, Any]:
    from erniecore_conformance.exercise import LIGHT
    from erniecore_conformance.subjects import Subject

    if request["kind"] not in LIGHT:
        return {"used": False}
    try:
        LIGHT[request["kind"]](Subject.at(request["target"]))
    except Exception as error:
        return {"used": True, "error": f"{type(error).__name__}: {error}", "paddle": "paddle" in sys.modules}
    return {"used": True, "error": "", "paddle": "paddle" in sys.modules}


def _serve(request: dict[str, Any]) -> dict[str, Any]:
    """Ask a server plugin for a directory that holds no model."""
    from erniecore.api import ErnieError
    from erniecore_conformance.subjects import Subject

    subject = Subject.at(request["target"])
    try:
        status = subject.call("ernie_serve", config=subject.config(), directory=Path(request["directory"]))
    except ErnieError as error:
        return {"refused": True, "detail": str(error)}
    except Exception as error:
        return {"refused": False, "detail": f"raised {type(error).__name__}: {error}"}
    return {"refused": False, "detail": f"returned {status!r}"}


def _help(request: dict[str, Any]) -> dict[str, Any]:
    """Ask a command plugin for its help text."""
    from erniecore_conformance.exercise import command_call
    from erniecore_conformance.subjects import Subject

    code, text = command_call(Subject.at(request["target"], kind="command"), "--help")
    return {"code": code, "text": text, "paddle": "paddle" in sys.modules}


_ACTIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"look": _look, "serve": _serve, "help": _help}
