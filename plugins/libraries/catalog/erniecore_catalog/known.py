"""Distributions by name: which one brings a plugin that is not installed (``known.toml``), and which provide paddle; and our
settings and plugins by the names of other toolkits (``synonyms.toml``, ``plugin_names.toml``).

Only used to word errors and reports; nothing is chosen by it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

from erniecore_catalog.offers import State, state

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Distributions that provide the module ``paddle``, or a device for it.
PADDLE_WHEELS = (
    "paddlepaddle",
    "paddlepaddle-gpu",
    "paddlepaddle-xpu",
    "paddle-custom-npu",
    "paddle-iluvatar-gpu",
    "paddle-metax-gpu",
)


@lru_cache(maxsize=3)
def _file(name: str = "known.toml") -> Mapping[str, Mapping[str, Any]]:
    """Section -> key -> value of a table."""
    return tomllib.loads(files("erniecore_catalog").joinpath(name).read_text(encoding="utf-8"))


def known() -> dict[tuple[str, str], str]:
    """(kind, name) -> distribution, as ``known.toml`` lists them."""
    return dict(_known())


@lru_cache(maxsize=1)
def _known() -> Mapping[tuple[str, str], str]:
    """What :func:`known` copies: it is asked for with every plugin that is looked up."""
    named = {kind: names for kind, names in _file().items() if kind not in ("help", "model_type", "kernels_for")}
    return {(kind, name): dist for kind, names in named.items() for name, dist in names.items()}


def synonyms() -> dict[str, str]:
    """Name elsewhere, in small letters with underscores -> our ``section.key``."""
    table = _file("synonyms.toml").items()
    return {name: f"{s}.{key}" for s, keys in table for key, names in keys.items() for name in names}


def same_plugin(kind: str, name: str) -> str:
    """Our plugin that other toolkits call ``name``, whatever its case and separators; empty when there is none."""
    plain = re.sub(r"[_. ]", "-", name.lower())
    return next((ours for ours, names in _file("plugin_names.toml").get(kind, {}).items() if plain in names), "")


def summary_of(command: str) -> str:
    """The help line of a command of ours, such as ``plan`` or ``data.build``; empty when it is not ours."""
    return str(_file().get("help", {}).get(command, ""))


def commands_in(prefix: str) -> list[str]:
    """Our own commands of one group, installed or not: ``check`` … for ``data.``, ``plan`` … for the empty prefix."""
    names = (name[len(prefix) :] for name in _file().get("help", {}) if name.startswith(prefix))
    return [name for name in names if "." not in name]


def home_of(kind: str, name: str) -> str:
    """The distribution that brings plugin ``name``; empty when nobody knows."""
    return known().get((kind, name), "")


def reader_of(model_type: str) -> str:
    """The distribution that reads models of a ``model_type``; empty when nobody knows."""
    return str(_file().get("model_type", {}).get(model_type, ""))


def kernels_for(device: str) -> str:
    """The distribution with kernels for a device; empty where there is none but those that settings have to ask for."""
    return str(_file().get("kernels_for", {}).get(device, ""))


def installed(names: tuple[str, ...] = PADDLE_WHEELS) -> dict[str, str]:
    """Name -> version of those distributions of ``names`` that are installed; imports none of them."""
    return dict(_installed(names, state()))


@lru_cache(maxsize=16)
def _installed(names: tuple[str, ...], environment: State) -> dict[str, str]:
    """``environment`` is the key only: whoever installs something changes it."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
