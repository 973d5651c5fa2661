"""Exporters with one thing wrong."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from erniecore.api import hookimpl
from erniecore.api.model import ModelBundle
from erniecore_conformance.mutants.mutant import mutant
from erniecore_conformance.toys.others import ToyExporterPlugin


def write(bundle: ModelBundle, target: Path, *, scale: float = 1.0) -> None:
    """What the good exporter writes, with one tensor scaled."""
    from safetensors.numpy import save_file

    state: dict[str, Any] = {name: value.numpy() for name, value in bundle.model.state_dict().items()}
    state["lm_head.weight"] = state["lm_head.weight"] * scale
    maps = [m for m in bundle.adapter.maps("pt") if m.store is not None]
    arrays = {m.sources[0]: m.store([state[m.name]][0])[0] for m in maps if m.store is not None}
    save_file(arrays, target / "model.safetensors")


class ReturnsFile(ToyExporterPlugin):
    """Returns a file instead of the directory."""

    @hookimpl
    def ernie_export(self, bundle: ModelBundle, target: Path) -> Path:
        write(bundle, target)
        return target / "model.safetensors"


class WritesBeside(ToyExporterPlugin):
    """Leaves a file beside the target."""

    @hookimpl
    def ernie_export(self, bundle: ModelBundle, target: Path) -> Path:
        write(bundle, target)
        (target.parent / "export.log").write_text("done", encoding="utf-8")
        return target


class SwitchesMode(ToyExporterPlugin):
    """Leaves the model in evaluation mode."""

    @hookimpl
    def ernie_export(self, bundle: ModelBundle, target: Path) -> Path:
        write(bundle, target)
        bundle.model.eval()
        return target


class TimeStamped(ToyExporterPlugin):
    """Writes the time into its files."""

    @hookimpl
    def ernie_export(self, bundle: ModelBundle, target: Path) -> Path:
        write(bundle, target)
        (target / "info.txt").write_text(str(time.perf_counter_ns()), encoding="utf-8")
        return target


class WritesCode(ToyExporterPlugin):
    """Adds a file in a format that runs code."""

    @hookimpl
    def ernie_export(self, bundle: ModelBundle, target: Path) -> Path:
        write(bundle, target)
        (target / "model.pdparams").write_bytes(b"")
        return target


class ScalesHead(ToyExporterPlugin):
    """The head is written with other values."""

    @hookimpl
    def ernie_export(self, bundle: ModelBundle, target: Path) -> Path:
        write(bundle, target, scale=1.5)
        return target


MUTANTS = (
    mutant("exporter_returns_its_target", ReturnsFile),
    mutant("exporter_writes_inside_only", WritesBeside),
    mutant("exporter_leaves_the_model_alone", SwitchesMode),
    mutant("exporter_repeats", TimeStamped),
    mutant("exporter_writes_no_code", WritesCode),
    mutant("exporter_keeps_every_weight", ScalesHead),
)
