"""Checks for exporters, over the toy model. An exporter whose files hold other values than the model (lower precision)
declares the capability ``lossy``; one that loads what it wrote declares ``installed-model`` and gets a tiny model of an
installed plugin instead."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from erniecore.api.export import ExporterCapability
from erniecore.api.model import ModelBundle
from erniecore_conformance.check import Check
from erniecore_conformance.expect import NotApplicable, ensure, ensure_bits, ensure_equal
from erniecore_conformance.subjects import Subject
from erniecore_conformance.toys.bundle import bundle_for

#: suffixes of files that run code when they are read
_UNSAFE = {".pkl", ".pickle", ".pt", ".pth", ".pdparams", ".pdopt", ".pdmodel", ".joblib"}


@contextmanager
def _exported(subject: Subject, bundle: ModelBundle | None = None) -> Iterator[tuple[Path, Any]]:
    with tempfile.TemporaryDirectory() as parent:
        target = Path(parent) / "target"
        target.mkdir()
        found = subject.call(
            "ernie_export", config=subject.config(), bundle=bundle or bundle_for(subject), target=target
        )
        yield target, found


def _files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def check_exporter_returns_its_target(subject: Subject) -> None:
    """``ernie_export`` returns ``target``, which then holds at least one file."""
    with _exported(subject) as (target, found):
        ensure_equal(found, target, "what ernie_export returns")
        ensure(bool(_files(target)), "nothing was written")


def check_exporter_writes_inside_only(subject: Subject) -> None:
    """Nothing is written beside ``target`` or into the working directory."""
    here = {p.name for p in Path.cwd().iterdir()}
    with _exported(subject) as (target, _):
        beside = [p.name for p in target.parent.iterdir() if p != target]
        ensure(not beside, f"written beside the target: {', '.join(beside)}")
    new = {p.name for p in Path.cwd().iterdir()} - here
    ensure(not new, f"written into the working directory: {', '.join(sorted(new))}")


def check_exporter_leaves_the_model_alone(subject: Subject) -> None:
    """The model keeps every bit of its weights and its training mode."""
    from erniecore_conformance.toys.compute import weights

    bundle = bundle_for(subject)
    before, training = weights(bundle.model), bundle.model.training
    with _exported(subject, bundle):
        pass
    for name, value in weights(bundle.model).items():
        ensure_bits(value, before[name], f"{name} after the export")
    ensure_equal(bundle.model.training, training, "training mode after the export")


def check_exporter_repeats(subject: Subject) -> None:
    """Exporting the same model twice writes the same files, byte for byte."""
    contents = []
    for _ in range(2):
        with _exported(subject) as (target, _):
            contents.append(_files(target))
    ensure_equal(sorted(contents[1]), sorted(contents[0]), "files of a second export")
    for name, data in contents[0].items():
        ensure(contents[1][name] == data, f"{name} differs in a second export")


def check_exporter_writes_no_code(subject: Subject) -> None:
    """No file of a kind that runs code when it is read."""
    with _exported(subject) as (target, _):
        unsafe = [name for name in _files(target) if Path(name).suffix in _UNSAFE]
    ensure(not unsafe, f"files that run code when read: {', '.join(unsafe)}")


def check_exporter_keeps_every_weight(subject: Subject) -> None:
    """Every weight can be read back from the safetensors or npz files, bit for bit, under its public or its own
    name."""
    from erniecore_conformance.toys.compute import weights

    bundle = bundle_for(subject, seed=3)
    state = weights(bundle.model)
    with _exported(subject, bundle) as (target, _):
        found = _read_arrays(target)
    if not found:
        raise NotApplicable("it writes neither safetensors nor npz files")
    for m in bundle.adapter.maps("pt"):
        assert m.store is not None
        public = dict(zip(m.sources, m.store(state[m.name]), strict=True))
        expected = public if set(public) <= set(found) else {m.name: state[m.name]}
        for name, value in expected.items():
            ensure(name in found, f"{m.name} is in no file, neither as {', '.join(m.sources)} nor under its own name")
            ensure_bits(found[name], value, name)


def _read_arrays(root: Path) -> dict[str, Any]:
    import numpy as np
    from safetensors.numpy import load_file

    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*.safetensors")):
        found.update(load_file(path))
    for path in sorted(root.rglob("*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            found.update({name: arrays[name] for name in arrays.files})
    return found


CHECKS = (
    Check(check_exporter_returns_its_target),
    Check(check_exporter_writes_inside_only),
    Check(check_exporter_leaves_the_model_alone),
    Check(check_exporter_repeats),
    Check(check_exporter_writes_no_code),
    Check(check_exporter_keeps_every_weight, unless=ExporterCapability.LOSSY),
)
