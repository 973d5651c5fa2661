"""Loading public weights through a state adapter: a two-layer toy whose matrices are stored transposed."""

from __future__ import annotations

import json
import os

import ml_dtypes
import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_checkpoint.directories import write_directory_manifest
from erniecore_system.hashing import stream_hash
from safetensors.numpy import save_file

from erniecore.engine.arrays import to_numpy
from erniecore.engine.models.weights import load_weights
from erniecore.errors import CheckpointError, NumericsError, PluginError
from erniecore.types.model import TensorMap

V, H, E = 6, 4, 3


class Toy(paddle.nn.Layer):
    """Embedding, a square matrix, stacked experts, a float32 gate, and a head unless it is tied."""

    def __init__(self, tied=False, dtype="float32"):
        super().__init__()
        self.architecture = {"tie_word_embeddings": tied}
        self.embed_tokens = self.add("embed_tokens.weight", [V, H], dtype)
        self.square = self.add("square", [H, H], dtype)
        self.experts = self.add("experts", [E, H, 2], dtype)
        self.gate = self.add("gate", [H], "float32")
        if not tied:
            self.head = self.add("head", [H, V], dtype)

    def add(self, name, shape, dtype):
        return self.create_parameter(shape, dtype=dtype, default_initializer=paddle.nn.initializer.Constant(0.5))


def first(arrays):
    return arrays[0]


def turned(arrays):
    return arrays[0].T


class Adapter:
    """Layouts ``pt`` ([out, in]) and ``paddle`` ([in, out]); names differ by a prefix."""

    def __init__(self, tied=False):
        self.tied, self.asked = tied, []

    def layout_of(self, names):
        self.asked.append(list(names))
        return "paddle" if any(name.startswith("p.") for name in names) else "pt"

    def maps(self, layout, names=()):
        load = turned if layout == "pt" else first
        prefix = "" if layout == "pt" else "p."
        experts = tuple(f"{prefix}experts.{i}" for i in range(E))
        maps = [
            TensorMap("embed_tokens", (V, H), (f"{prefix}embed_tokens.weight",), ((V, H),), first, None),
            TensorMap("square", (H, H), (f"{prefix}square",), ((H, H),), load, None),
            TensorMap("experts", (E, H, 2), experts, ((2, H),) * E, lambda a: np.stack([x.T for x in a]), None),
            TensorMap("gate", (H,), (f"{prefix}gate",), ((H,),), first, None, "float32"),
        ]
        if not self.tied:
            maps.append(TensorMap("head", (H, V), ("lm_head.weight",), ((V, H),), turned, None))
        return maps

    def ignored(self, name):
        return name.startswith("mtp.")


def public(dtype=np.float32, prefix="", tied=False):
    random = np.random.default_rng(0)
    names = {"embed_tokens.weight": (V, H), "square": (H, H), "gate": (H,)}
    names |= {f"experts.{i}": (2, H) for i in range(E)}
    arrays = {prefix + name: random.normal(size=shape).astype(dtype) for name, shape in names.items()}
    if not tied:
        arrays["lm_head.weight"] = random.normal(size=(V, H)).astype(dtype)
    return arrays


def store(directory, arrays):
    save_file(arrays, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def shard(directory, arrays, **changes):
    """Two shards and an index; ``changes`` replace entries of its weight_map."""
    names = sorted(arrays)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, members in files.items():
        save_file({name: arrays[name] for name in members}, directory / file)
    weight_map = {name: file for file, members in files.items() for name in members}
    weight_map.update(changes)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def test_every_parameter_gets_its_values(tmp_path):
    model, arrays = Toy(), public()
    report = load_weights(model, store(tmp_path, arrays), Adapter())
    np.testing.assert_array_equal(to_numpy(model.embed_tokens), arrays["embed_tokens.weight"])
    np.testing.assert_array_equal(to_numpy(model.square), arrays["square"].T)
    np.testing.assert_array_equal(to_numpy(model.experts)[1], arrays["experts.1"].T)
    np.testing.assert_array_equal(to_numpy(model.head), arrays["lm_head.weight"].T)
    assert (report.layout, report.num_tensors) == ("pt", 5)
    assert report.num_parameters == sum(array.size for array in arrays.values())
    assert (report.converted, report.ignored) == ({}, ())


def test_the_layout_is_decided_once_for_all_tensors(tmp_path):
    adapter, arrays = Adapter(), public(prefix="p.")
    model = Toy()
    assert load_weights(model, store(tmp_path, arrays), adapter).layout == "paddle"
    assert len(adapter.asked) == 1
    assert set(adapter.asked[0]) == set(arrays)
    np.testing.assert_array_equal(to_numpy(model.square), arrays["p.square"])


def test_shards_are_read_through_their_index(tmp_path):
    model, arrays = Toy(), public()
    load_weights(model, shard(tmp_path, arrays), Adapter())
    np.testing.assert_array_equal(to_numpy(model.square), arrays["square"].T)


def test_bfloat16_files_become_float32_exactly_and_are_reported(tmp_path):
    model, arrays = Toy(), public(ml_dtypes.bfloat16)
    report = load_weights(model, store(tmp_path, arrays), Adapter())
    np.testing.assert_array_equal(to_numpy(model.square), arrays["square"].T.astype(np.float32))
    assert report.converted == {"bfloat16 -> float32": len(arrays)}
    assert "converted bfloat16 -> float32" in str(report)


def test_float32_files_are_rounded_for_a_bfloat16_model_but_not_its_float32_tensors(tmp_path):
    model, arrays = Toy(dtype="bfloat16"), public()
    load_weights(model, store(tmp_path, arrays), Adapter())
    expected = arrays["square"].T.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(to_numpy(model.square), expected)
    np.testing.assert_array_equal(to_numpy(model.gate), arrays["gate"])


def test_float16_files_become_float32_exactly(tmp_path):
    model, arrays = Toy(), public(np.float16)
    load_weights(model, store(tmp_path, arrays), Adapter())
    np.testing.assert_array_equal(to_numpy(model.gate), arrays["gate"].astype(np.float32))


def test_integers_do_not_become_weights(tmp_path):
    arrays = public()
    arrays["square"] = arrays["square"].astype(np.int8)
    with pytest.raises(CheckpointError, match=r"square: this dtype cannot become .* \(got int8\); expected float32"):
        load_weights(Toy(), store(tmp_path, arrays), Adapter())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("gate"), "gate is missing"),
        (
            lambda a: a.update(gatte=a.pop("gate")),
            r"gate is missing \(near: gatte\); gatte is unexpected \(near: gate\)",
        ),
        (lambda a: a.update(extra=a["gate"]), "extra is unexpected"),
        (lambda a: a.update(gate=a["gate"][:-1]), r"gate has shape \[3\], expected \[4\]"),
        (
            lambda a: a.update({"experts.1": a["experts.1"].T.copy()}),
            r"experts.1 has shape \[4, 2\], expected \[2, 4\]",
        ),
    ],
)
def test_names_and_shapes_must_be_exactly_right(tmp_path, change, message):
    arrays, model = public(), Toy()
    change(arrays)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_weights(model, store(tmp_path, arrays), Adapter())
    assert caught.value.code == "ERN-K004"
    assert (to_numpy(model.square) == 0.5).all(), "nothing may change when something is wrong"


def test_tensors_that_the_model_ignores_are_reported(tmp_path):
    arrays = public() | {"mtp.0.weight": np.zeros(2, np.float32)}
    assert load_weights(Toy(), store(tmp_path, arrays), Adapter()).ignored == ("mtp.0.weight",)


def test_a_thousand_wrong_names_are_reported_at_once_and_cut_short(tmp_path):
    arrays = {f"layer.{i}.weight": np.zeros(1, np.float32) for i in range(1000)}
    with pytest.raises(CheckpointError, match=r"1007 problems.*and 997 more"):
        load_weights(Toy(), store(tmp_path, arrays), Adapter())


# ------------------------------------------------------------------------------------------------- tied heads


def test_a_tied_head_that_repeats_the_embedding_is_accepted(tmp_path):
    arrays = public(tied=True)
    arrays["lm_head.weight"] = arrays["embed_tokens.weight"].copy()
    report = load_weights(Toy(tied=True), store(tmp_path, arrays), Adapter(tied=True))
    assert report.num_tensors == 4


def test_a_tied_head_that_differs_from_the_embedding_is_refused(tmp_path):
    arrays = public(tied=True)
    arrays["lm_head.weight"] = arrays["embed_tokens.weight"] + 1
    with pytest.raises(CheckpointError, match=r"lm_head\.weight: config\.json says tie_word_embeddings, but"):
        load_weights(Toy(tied=True), store(tmp_path, arrays), Adapter(tied=True))


def test_an_untied_model_without_a_head_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        load_weights(Toy(), store(tmp_path, public(tied=True)), Adapter())


# ------------------------------------------------------------------------------------------------- files


def test_a_missing_shard_is_named(tmp_path):
    shard(tmp_path, public())
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 of 2 weight shards are missing \(got b\.safetensors\)"):
        load_weights(Toy(), tmp_path, Adapter())


def test_an_index_that_promises_too_much_is_refused(tmp_path):
    shard(tmp_path, public(), ghost="a.safetensors")
    with pytest.raises(CheckpointError, match=r"a\.safetensors: ghost: the index promises this tensor"):
        load_weights(Toy(), tmp_path, Adapter())


def test_an_index_that_names_the_wrong_shard_is_refused(tmp_path):
    shard(tmp_path, public(), gate="a.safetensors" if sorted(public()).index("gate") % 2 else "b.safetensors")
    with pytest.raises(CheckpointError, match="gate: the index says"):
        load_weights(Toy(), tmp_path, Adapter())


def test_an_index_cannot_point_outside_of_the_directory(tmp_path):
    (tmp_path / "model").mkdir()
    shard(tmp_path / "model", public(), gate="../secret.safetensors")
    with pytest.raises(CheckpointError, match="file names beside the index"):
        load_weights(Toy(), tmp_path / "model", Adapter())


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}'])
def test_a_damaged_index_is_refused(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json"):
        load_weights(Toy(), tmp_path, Adapter())


def test_a_single_file_beside_an_index_is_refused(tmp_path):
    shard(store(tmp_path, public()), public())
    with pytest.raises(CheckpointError, match="both a single weight file and an index"):
        load_weights(Toy(), tmp_path, Adapter())


def test_a_directory_of_pickles_gets_the_conversion_hint(tmp_path):
    (tmp_path / "model_state.pdparams").write_bytes(b"\x80\x04.")
    with pytest.raises(CheckpointError, match="pickle") as caught:
        load_weights(Toy(), tmp_path, Adapter())
    assert "convert" in caught.value.fix


@pytest.mark.parametrize("name", ["", "nowhere"])
def test_a_directory_without_weights_says_what_is_expected(tmp_path, name):
    with pytest.raises(CheckpointError, match=r"no weights|does not exist"):
        load_weights(Toy(), tmp_path / name, Adapter())


# ------------------------------------------------------------------------------------------------- wrong adapters


def test_an_adapter_that_forgets_a_tensor_is_a_broken_plugin(tmp_path):
    adapter = Adapter()
    adapter.tied = True
    with pytest.raises(PluginError, match=r"head is not in the model|head is missing"):
        load_weights(Toy(), store(tmp_path, public(tied=True)), adapter)


def test_an_adapter_that_makes_another_shape_is_a_broken_plugin(tmp_path):
    class Wrong(Adapter):
        def maps(self, layout, names=()):
            maps = super().maps(layout, names)
            maps[2] = TensorMap("experts", (E, H, 2), maps[2].sources, ((2, H),) * E, np.stack, None)
            return maps

    with pytest.raises(PluginError, match=r"experts: .* another shape \(got \[3, 2, 4\]\)"):
        load_weights(Toy(), store(tmp_path, public()), Wrong())


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_values_that_are_not_finite_are_refused_by_name(tmp_path, dtype):
    arrays = public(dtype)
    arrays["experts.1"][0, 2] = np.inf
    with pytest.raises(NumericsError) as caught:
        load_weights(Toy(), store(tmp_path, arrays), Adapter())
    assert caught.value.where.endswith("model.safetensors: experts.1")


def test_one_changed_bit_is_found_where_there_is_a_manifest(tmp_path):
    path = store(tmp_path, public()) / "model.safetensors"
    write_directory_manifest(tmp_path, {})
    load_weights(Toy(), tmp_path, Adapter())
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="sha256") as caught:
        load_weights(Toy(), tmp_path, Adapter())
    assert caught.value.where == str(path)


def test_a_file_that_nobody_touched_is_not_hashed_again(tmp_path, monkeypatch):
    from erniecore_system import contents

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(contents, "_SETTLED", -1.0)
    monkeypatch.setattr(contents, "_SMALL", 0)
    read = []
    monkeypatch.setattr(contents, "stream_hash", lambda stream: read.append(stream.name) or stream_hash(stream))
    path = store(tmp_path, public()) / "model.safetensors"
    write_directory_manifest(tmp_path, {})
    for _ in range(3):
        load_weights(Toy(), tmp_path, Adapter())
    assert [str(name) for name in read] == [str(path)]
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    stat = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # size, inode and time of writing are as before
    with pytest.raises(CheckpointError, match="sha256"):
        load_weights(Toy(), tmp_path, Adapter())


@pytest.mark.parametrize("stored", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("layout", ["pt", "paddle"])
@pytest.mark.parametrize("wanted", ["float32", "bfloat16"])
def test_values_that_are_converted_while_they_are_placed_are_those_of_numpy(tmp_path, stored, layout, wanted):
    dtype = {"bfloat16": ml_dtypes.bfloat16}.get(stored, stored)
    arrays = public(dtype, "p." if layout == "paddle" else "")
    with paddle.LazyGuard():
        model = Toy(dtype=wanted)
    load_weights(model, store(tmp_path, arrays), Adapter())
    square = arrays["square"].T if layout == "pt" else arrays["p.square"]
    found = to_numpy(model.square)
    found = found.view(ml_dtypes.bfloat16) if wanted == "bfloat16" else found
    np.testing.assert_array_equal(found, square.astype(np.float32).astype(found.dtype))
    assert model.square._is_initialized()
