"""For tools that examine an installation: plugins, kernels and Paddle wheels, and whether they work."""

from __future__ import annotations

from erniecore_catalog.known import PADDLE_WHEELS, installed, kernels_for, known
from erniecore_checkpoint.files import existing_parent, free_bytes
from erniecore_system.memory import host_memory
from erniecore_system.units import size_text

from erniecore.config.hubs import hub_of
from erniecore.engine.launch import apply_environment, default_device
from erniecore.host import Host, assemble
from erniecore.kernels import OPERATORS, REFERENCE
from erniecore.kernels import choose as choose_kernels
from erniecore.kernels import installed as installed_kernels
from erniecore.plugin import KernelSet
from erniecore.plugin_entry import CONFLICT, Entry
from erniecore.registry import all_entries, entries, find, harm, load, load_object, loadable

__all__ = [
    "CONFLICT",
    "OPERATORS",
    "PADDLE_WHEELS",
    "REFERENCE",
    "Entry",
    "Host",
    "KernelSet",
    "all_entries",
    "apply_environment",
    "assemble",
    "choose_kernels",
    "default_device",
    "entries",
    "existing_parent",
    "find",
    "harm",
    "free_bytes",
    "host_memory",
    "hub_of",
    "installed",
    "installed_kernels",
    "kernels_for",
    "known",
    "load",
    "load_object",
    "loadable",
    "size_text",
]
