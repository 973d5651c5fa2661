"""A checkpoint that several processes wrote: whatever byte changes, whatever is cut off or missing, it is found with its file
and tensor, and the older checkpoint is used."""

from __future__ import annotations

import random
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from erniecore_checkpoint.parts import PartWriter
from erniecore_checkpoint.reader import load_checkpoint, newest_verified
from erniecore_checkpoint.verify import verify_checkpoint
from erniecore_checkpoint.write_plan import divide
from erniecore_checkpoint.writer import Save
from erniecore_errors import CheckpointError

OWNERS = 4
DAMAGES = 240


def arrays(step):
    rng = np.random.default_rng(step)
    model = {f"layers.{i}.weight": rng.normal(size=(7, 5)).astype(np.float32) for i in range(9)}
    moments = {f"{name}.{m}": rng.normal(size=(7, 5)).astype(np.float32) for name in model for m in ("first", "second")}
    return {"model": {**model, "bias": np.arange(11, dtype=np.uint16)}, "optim": moments}


def save_together(root, step):
    """As ``OWNERS`` processes do, each with a thread of its own."""
    tensors = arrays(step)
    specs = {
        g: {n: ("BF16" if a.dtype == np.uint16 else "F32", a.shape) for n, a in m.items()} for g, m in tensors.items()
    }
    plan = divide(specs, {(g, n): range(OWNERS) for g in specs for n in specs[g]}, max_bytes=300)
    save = Save(root, step, {"step": step}, 3)
    directory = save.begin(plan.num_bytes)
    with ThreadPoolExecutor(OWNERS) as executor:
        parts = [PartWriter(directory, plan.of(owner), executor) for owner in range(OWNERS)]
        for keys in plan.rounds(200):
            for group, name in keys:
                parts[plan.owners[group, name]].put(tensors[group][name])
        files = {file.name: file for part in parts for file in part.files}
    groups = {group: [file.name for file in plan.files if file.group == group] for group in specs}
    return save.finish(files, groups)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    root = tmp_path_factory.mktemp("many") / "ckpt"
    for step in (1, 2):
        save_together(root, step)
    return root


@pytest.fixture
def root(template, tmp_path):
    return shutil.copytree(template, tmp_path / "ckpt")


def test_what_many_wrote_is_read_as_one(root):
    checkpoint = load_checkpoint(root / "step-00000002")
    for group, members in arrays(2).items():
        assert set(checkpoint.tensors[group]) == set(members)
        assert all(checkpoint.tensors[group][name].tobytes() == array.tobytes() for name, array in members.items())
    assert len(checkpoint.manifest.groups["optim"]) > OWNERS


def flip(path, rng):
    data = bytearray(path.read_bytes())
    offset = rng.randrange(len(data))
    data[offset] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return offset


def cut(path, rng):
    data = path.read_bytes()
    length = rng.randrange(len(data))
    path.write_bytes(data[:length])
    return length


def remove(path, rng):
    path.unlink()
    return 0


def test_every_damage_is_found_with_its_file_and_tensor_and_what_is_used_instead(root):
    path, rng, missed, named = root / "step-00000002", random.Random(4), [], 0
    files = load_checkpoint(path).manifest.files
    names = sorted([*files, "MANIFEST.json"])
    originals = {name: (path / name).read_bytes() for name in names}
    for number in range(DAMAGES):
        name, damage = names[number % len(names)], rng.choices([flip, cut, remove], [6, 3, 1])[0]
        offset = damage(path / name, rng)
        findings = verify_checkpoint(path)
        hit = [
            t
            for t, place in (files[name].tensors if name in files else {}).items()
            if place.begin <= offset < place.end
        ]
        if {f.file for f in findings} != {name} or (hit and damage is flip and [f.tensor for f in findings] != hit):
            missed.append((name, damage.__name__, offset, findings))
        named += any(f.tensor for f in findings)
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(path)
        assert name in str(caught.value)
        found, notes = newest_verified(root)
        assert found == root / "step-00000001"
        assert notes[-1] == "step-00000001 is whole and used instead"
        assert name in notes[0]
        (path / name).write_bytes(originals[name])
    assert missed == []
    assert named > DAMAGES / 2
    assert verify_checkpoint(path) == []


def test_a_file_that_another_machine_wrote_elsewhere_is_missed_before_the_checkpoint_gets_its_name(root, monkeypatch):
    finish = Save.finish

    def lose(self, files, groups):
        next(iter(self.directory.glob("optim-*"))).unlink()
        return finish(self, files, groups)

    monkeypatch.setattr(Save, "finish", lose)
    with pytest.raises(CheckpointError, match="a file that another process wrote is not here") as caught:
        save_together(root, 3)
    assert "file system that all machines share" in caught.value.fix
    assert newest_verified(root) == (root / "step-00000002", [])
    assert not list(root.glob(".*"))
