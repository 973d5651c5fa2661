"""Writing model directories through a state adapter: bounded memory, atomicity, wrong adapters."""

from __future__ import annotations

import errno
import os

import numpy as np
import paddle  # noqa: TID253
import pytest
from safetensors.numpy import load_file

from erniecore.engine.models import model_files
from erniecore.engine.models.model_files import public_tensors, save_model_directory
from erniecore.errors import CheckpointError, PluginError
from erniecore.types.model import ModelBundle, TensorMap

E, H = 4, 3


class Toy(paddle.nn.Layer):
    """One tensor of stacked experts and one that must stay float32."""

    def __init__(self):
        super().__init__()
        values = np.arange(E * H * 2, dtype=np.float32).reshape(E, H, 2)
        assign = paddle.nn.initializer.Assign
        self.experts = self.create_parameter([E, H, 2], default_initializer=assign(values))
        self.gate = self.create_parameter([H], default_initializer=assign(np.full(H, 1 / 3, np.float32)))


class Adapter:
    """Public experts are single matrices, transposed."""

    def __init__(self):
        self.calls = 0

    def layout_of(self, names):
        return "pt"

    def maps(self, layout, names=()):
        def store(array):
            self.calls += 1
            return [expert.T for expert in array]

        experts = tuple(f"experts.{i}" for i in range(E))
        load = lambda arrays: np.stack([a.T for a in arrays])  # noqa: E731
        return [
            TensorMap("experts", (E, H, 2), experts, ((2, H),) * E, load, store),
            TensorMap("gate", (H,), ("gate",), ((H,),), lambda a: a[0], lambda a: [a], "float32"),
        ]

    def ignored(self, name):
        return False


@pytest.fixture
def bundle():
    return ModelBundle(model=Toy(), architecture={"model_type": "toy"}, adapter=Adapter(), tokenizer=None)


def test_stacked_tensors_are_converted_once_not_once_per_part(bundle, tmp_path):
    save_model_directory(bundle, tmp_path / "m")
    assert bundle.adapter.calls == 1
    stored = load_file(tmp_path / "m" / "model.safetensors")
    np.testing.assert_array_equal(stored["experts.2"], bundle.model.experts.numpy()[2].T)


def test_nothing_is_converted_before_it_is_written(bundle):
    public_tensors(bundle)
    assert bundle.adapter.calls == 0


def test_a_stored_dtype_holds_for_all_but_the_tensors_that_must_stay(bundle, tmp_path):
    save_model_directory(bundle, tmp_path / "m", dtype="float16")
    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert {name: str(array.dtype) for name, array in stored.items()} == {
        "gate": "float32",
        **{f"experts.{i}": "float16" for i in range(E)},
    }


def test_a_full_disk_leaves_nothing_and_has_a_remedy(bundle, tmp_path, monkeypatch):
    def full(fd, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(CheckpointError, match="no space left on the disk while writing a model directory") as caught:
        save_model_directory(bundle, tmp_path / "m")
    assert caught.value.fix
    assert list(tmp_path.iterdir()) == []


def test_too_little_space_is_seen_first(bundle, tmp_path, monkeypatch):
    monkeypatch.setattr("erniecore_checkpoint.files.free_bytes", lambda path: 10)
    with pytest.raises(CheckpointError, match="not enough disk space for the model directory"):
        save_model_directory(bundle, tmp_path / "deep" / "m")
    assert list(tmp_path.iterdir()) == []


def test_an_adapter_that_cannot_write_is_a_broken_plugin(bundle, tmp_path, monkeypatch):
    maps = bundle.adapter.maps("pt")
    read_only = TensorMap(*(getattr(maps[1], f) for f in ("name", "shape", "sources", "source_shapes", "load")), None)
    monkeypatch.setattr(bundle.adapter, "maps", lambda *a: [maps[0], read_only])
    with pytest.raises(PluginError, match=r"gate: .* cannot write this tensor"):
        save_model_directory(bundle, tmp_path / "m")


def test_an_adapter_that_writes_a_name_twice_is_a_broken_plugin(bundle, monkeypatch):
    maps = bundle.adapter.maps("pt")
    twice = TensorMap("gate", (H,), ("experts.0",), ((H,),), maps[1].load, maps[1].store)
    monkeypatch.setattr(bundle.adapter, "maps", lambda *a: [maps[0], twice])
    with pytest.raises(PluginError, match=r"experts\.0: .* writes a tensor twice"):
        public_tensors(bundle)


def test_an_adapter_that_stores_another_shape_is_noticed(bundle, tmp_path, monkeypatch):
    maps = bundle.adapter.maps("pt")
    wrong = TensorMap("experts", (E, H, 2), maps[0].sources, ((2, H),) * E, maps[0].load, list)
    monkeypatch.setattr(bundle.adapter, "maps", lambda *a: [wrong, maps[1]])
    with pytest.raises(CheckpointError, match=r"experts\.0: the data of a tensor differs from what was announced"):
        save_model_directory(bundle, tmp_path / "m")


def test_the_dtype_of_a_model_is_that_of_most_of_its_elements(bundle):
    assert model_files.memory_dtype(bundle) == "float32"
    bundle.model.experts = bundle.model.create_parameter([E, H, 2], dtype="bfloat16")
    assert model_files.memory_dtype(bundle) == "bfloat16"
