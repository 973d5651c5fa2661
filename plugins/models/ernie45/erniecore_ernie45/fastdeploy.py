"""What FastDeploy calls when it starts (its entry point ``fastdeploy.model_register_plugins``): it serves these models with
its own classes; versions that know one only by an older name get the name that our exports carry. Without FastDeploy, and
until it calls, this imports nothing of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple


class Known(NamedTuple):
    """An architecture as FastDeploy has it: older names of the same class, and its module."""

    older: tuple[str, ...]
    module: str


ARCHITECTURES: Mapping[str, Known] = {"Ernie4_5ForCausalLM": Known(("Ernie4_5_ForCausalLM",), "ernie4_5_moe")}


def register() -> None:
    """Called by FastDeploy, without arguments."""
    register_architectures(ARCHITECTURES)


def register_architectures(wanted: Mapping[str, Known]) -> list[str]:
    """Make FastDeploy's own classes known by the names of ``wanted``; returns the names that were new.

    Warns about an architecture that this FastDeploy does not serve by any name. Nothing happens without FastDeploy.
    """
    if find_spec("fastdeploy") is None:
        return []
    registry = import_module("fastdeploy.model_executor.models.model_base").ModelRegistry
    served, new = set(registry.get_supported_archs()), []
    for name, known in wanted.items():
        if name in served:
            continue
        older = next((other for other in known.older if other in served), None)
        if older is None:
            warnings.warn(f"this FastDeploy does not serve {name}", stacklevel=2)
            continue
        registry.register_model_class(architecture=name, module_name=known.module)(registry.get_class(older))
        new.append(name)
    return new
