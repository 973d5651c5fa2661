"""Safetensors files: what we write the library reads, what it writes we read, and nothing false is believed."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import struct
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from erniecore_checkpoint.safetensors_io import merge_shards, open_tensors, read_header, refuse_pickle
from erniecore_checkpoint.safetensors_write import (
    SafetensorsFile,
    index_json,
    split_shards,
    write_safetensors,
    write_shards,
)
from erniecore_checkpoint.tensors import DTYPES, LONG_NAMES, PLAIN, Tensor, same_bits
from erniecore_errors import CheckpointError
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file


def craft(path, header, data=b"", length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


# ------------------------------------------------------------------------------------------------- round trips


def test_the_library_reads_what_we_write(tmp_path):
    arrays = {
        "f32": np.arange(6, dtype=np.float32).reshape(2, 3),
        "f16": np.ones(3, np.float16),
        "i64": np.array([[-1]], np.int64),
        "u8": np.zeros((0, 4), np.uint8),
        "scalar": np.array(2.5, np.float64),
        "flag": np.array([True, False]),
    }
    write_safetensors(tmp_path / "a.safetensors", arrays)
    loaded = load_file(tmp_path / "a.safetensors")
    assert set(loaded) == set(arrays)
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        np.testing.assert_array_equal(loaded[name], array)


def test_the_library_finds_the_format_mark_that_public_readers_need(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", {"a": np.zeros(1, np.float32)})
    with safe_open(tmp_path / "a.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "a", "b")])
def test_hashes_of_large_tensors_are_those_of_the_file(tmp_path, order):
    """Written and hashed at the same time, in blocks where they come in another order than they lie."""
    rng = np.random.default_rng(0)
    tensors = {
        name: rng.integers(0, 256, size, np.uint8) for name, size in (("a", 9_000_000), ("b", 3_000_001), ("c", 5))
    }
    file = SafetensorsFile(tmp_path / "f.safetensors", {name: ("U8", x.shape) for name, x in tensors.items()})
    for name in order:
        file.add(name, Tensor.of(tensors[name]))
    written = file.finish()
    assert written.sha256 == hashlib.sha256(written_bytes := (tmp_path / "f.safetensors").read_bytes()).hexdigest()
    for name, found in written.tensors.items():
        assert written_bytes[found.begin : found.end] == tensors[name].tobytes()
        assert found.sha256 == hashlib.sha256(tensors[name]).hexdigest()


def test_a_file_that_is_truncated_after_it_was_mapped_is_an_error(tmp_path):
    """Where a tensor is taken that is gone; one before it is still read."""
    path = tmp_path / "f.safetensors"
    write_safetensors(path, {"first": np.arange(50_000.0), "last": np.ones(50_000)})
    tensors = open_tensors(path)
    os.truncate(path, 500_000)
    assert float(tensors["first"].load()[-1]) == 49_999
    with pytest.raises(CheckpointError, match="truncated while it was in use") as caught:
        tensors["last"].load()
    assert caught.value.where == f"{path}: last"


def test_uint16_is_stored_as_bfloat16(tmp_path):
    values = np.array([1.5, -2.0, 3e38], ml_dtypes.bfloat16)
    write_safetensors(tmp_path / "a.safetensors", {"a": values.view(np.uint16)})
    loaded = load_file(tmp_path / "a.safetensors")["a"]
    assert loaded.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(loaded, values)


def test_we_read_what_the_library_writes(tmp_path):
    arrays = {"x": np.arange(5, dtype=np.int32), "y": np.array([1, 2], ml_dtypes.bfloat16)}
    save_file(arrays, tmp_path / "a.safetensors", metadata={"k": "v"})
    tensors = open_tensors(tmp_path / "a.safetensors")
    assert read_header(tmp_path / "a.safetensors").metadata == {"k": "v"}
    np.testing.assert_array_equal(tensors["x"].load(), arrays["x"])
    assert tensors["y"].dtype == "BF16"
    np.testing.assert_array_equal(tensors["y"].load(), arrays["y"].view(np.uint16))


@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3), max_size=6),
    names=st.lists(st.sampled_from(sorted(PLAIN)), min_size=6, max_size=6),
    seed=st.integers(0, 2**16),
)
def test_any_tensors_come_back_bit_for_bit(tmp_path_factory, shapes, names, seed):
    path = tmp_path_factory.mktemp("roundtrip") / "a.safetensors"
    random = np.random.default_rng(seed)
    arrays = {
        f"tensor {index} é": random.integers(0, 2, shape).astype(name)
        for index, (shape, name) in enumerate(zip(shapes, names, strict=False))
    }
    write_safetensors(path, arrays)
    tensors = open_tensors(path)
    assert set(tensors) == set(arrays)
    for name, array in arrays.items():
        assert tensors[name].load().tobytes() == array.tobytes()
        assert tensors[name].load().dtype == array.dtype


def test_a_transposed_array_is_stored_in_its_own_order(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    write_safetensors(tmp_path / "a.safetensors", {"a": array})
    np.testing.assert_array_equal(load_file(tmp_path / "a.safetensors")["a"], array)


def test_a_big_endian_array_is_stored_little_endian(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", {"a": np.array([1, 2], ">i4")})
    np.testing.assert_array_equal(load_file(tmp_path / "a.safetensors")["a"], [1, 2])


def test_tensors_start_at_multiples_of_their_item_size(tmp_path):
    arrays = {"a": np.zeros(3, np.uint8), "b": np.zeros(2, np.float64), "c": np.zeros(5, np.uint16)}
    written = write_safetensors(tmp_path / "a.safetensors", arrays)
    assert all(t.begin % DTYPES[t.dtype].itemsize == 0 for t in written.tensors.values())


def test_views_of_the_file_are_read_only(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", {"a": np.zeros(3, np.float32)})
    with pytest.raises(ValueError, match="read-only"):
        open_tensors(tmp_path / "a.safetensors")["a"].load()[0] = 1


def test_every_dtype_has_a_long_name():
    assert set(LONG_NAMES) == set(DTYPES)


def test_a_dtype_that_no_file_can_hold_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"w: this dtype cannot be stored \(got complex64\)"):
        write_safetensors(tmp_path / "a.safetensors", {"w": np.zeros(1, np.complex64)})


def test_data_that_differs_from_its_announcement_is_refused(tmp_path):
    liar = Tensor("F32", (2,), lambda: np.zeros(3, np.float32))
    with pytest.raises(CheckpointError, match=r"w: .* announced \(got float32 \[3\]\); expected F32 \[2\]"):
        write_safetensors(tmp_path / "a.safetensors", {"w": liar})


# ------------------------------------------------------------------------------------------------- shards


def test_shards_are_cut_by_size_and_a_large_tensor_stands_alone():
    assert split_shards({"a": 4, "b": 4, "c": 20, "d": 1}, 8) == [["a", "b"], ["c"], ["d"]]


def test_nothing_to_store_is_one_empty_shard():
    assert split_shards({}, 8) == [[]]


def test_the_index_names_the_file_of_each_tensor(tmp_path):
    files = write_shards(tmp_path, "model", {"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)}, 8)
    assert index_json(files) == {
        "metadata": {"total_size": 16},
        "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"},
    }


def test_a_tensor_in_two_shards_is_refused_with_both_names(tmp_path):
    for name in ("one", "two"):
        write_safetensors(tmp_path / f"{name}.safetensors", {"w": np.zeros(1, np.float32)})
    with pytest.raises(CheckpointError, match=r"two\.safetensors: w: this tensor is also in one\.safetensors"):
        merge_shards([tmp_path / "one.safetensors", tmp_path / "two.safetensors"])


# ------------------------------------------------------------------------------------------------- false headers


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"w": entry("F99")}, b"0" * 8, "w: unknown dtype"),
        ({"w": entry(3)}, b"0" * 8, "w: unknown dtype"),
        ({"w": entry(shape=(-2,))}, b"0" * 8, "w: the shape is not a list of sizes"),
        ({"w": entry(shape=(True, 2))}, b"0" * 8, "w: the shape is not"),
        ({"w": entry(shape=(2.0,))}, b"0" * 8, "w: the shape is not"),
        ({"w": entry(offsets=(8, 0))}, b"0" * 8, "w: the offsets are not"),
        ({"w": entry(offsets=(0, 8, 9))}, b"0" * 8, "w: the offsets are not"),
        ({"w": entry(offsets=(0, 4))}, b"0" * 4, "w: the offsets do not span"),
        ({"w": entry(shape=(2**62, 8))}, b"0" * 8, "w: the offsets do not span"),
        ({"w": entry()}, b"0" * 7, "w: the file is truncated"),
        ({"w": entry()}, b"0" * 9, "w: 1 bytes at the end belong to no tensor"),
        ({"w": entry(offsets=(4, 12))}, b"0" * 12, "w: 4 bytes before this tensor belong to none"),
        ({"a": entry(), "w": entry(offsets=(4, 12))}, b"0" * 12, "w: the bytes of this tensor overlap those of a"),
        ({"w": {**entry(), "more": 1}}, b"0" * 8, "w: the header needs dtype, shape and data_offsets"),
        ({"w": [1]}, b"", "w: the header needs"),
        ({"__metadata__": {"format": 1}}, b"", "`__metadata__` must map text to text"),
        ([], b"", "the header is not a JSON object"),
        (b'{"w": ', b"", "the header is not JSON"),
        (b"[" * 100_000, b"", "the header is not JSON"),
        (b"\xff\xfe{}", b"", "the header is not JSON"),
    ],
)
def test_a_false_header_is_refused_with_file_and_tensor(tmp_path, header, data, message):
    path = craft(tmp_path / "model.safetensors", header, data)
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_duplicate_name_is_refused(tmp_path):
    raw = json.dumps(entry())
    path = craft(tmp_path / "a.safetensors", f'{{"w": {raw}, "w": {raw}}}'.encode(), b"0" * 8)
    with pytest.raises(CheckpointError, match="w: the header names something twice"):
        read_header(path)


def test_a_header_longer_than_100_mb_is_refused_before_it_is_read(tmp_path):
    path = craft(tmp_path / "a.safetensors", b"{}", length=100_000_001)
    with pytest.raises(CheckpointError, match="the header length is impossible"):
        read_header(path)


def test_a_header_longer_than_the_file_is_refused(tmp_path):
    path = craft(tmp_path / "a.safetensors", b"{}", length=1000)
    with pytest.raises(CheckpointError, match="truncated inside its header"):
        read_header(path)


@pytest.mark.parametrize("size", range(8))
def test_a_file_shorter_than_the_length_field_is_refused(tmp_path, size):
    (tmp_path / "a.safetensors").write_bytes(b"\0" * size)
    with pytest.raises(CheckpointError, match=f"the file is truncated .got {size} bytes"):
        read_header(tmp_path / "a.safetensors")


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_truncated_file_is_refused(tmp_path, cut):
    path = tmp_path / "a.safetensors"
    write_safetensors(path, {"w": np.arange(8, dtype=np.float32)})
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(CheckpointError, match="truncated"):
        open_tensors(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"nothing\.safetensors"):
        open_tensors(tmp_path / "nothing.safetensors")


# ------------------------------------------------------------------------------------------------- pickles


class Bomb:
    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("name", ["model.pdparams", "pytorch_model.bin", "a.pt", "a.pth", "a.pkl", "model.safetensors"])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_is_refused_and_never_opened(tmp_path, name, protocol):
    bomb = Bomb()
    bomb.path = str(tmp_path / "exploded")
    (tmp_path / name).write_bytes(pickle.dumps(bomb, protocol=protocol))
    with pytest.raises(CheckpointError, match="pickle") as caught:
        open_tensors(tmp_path / name)
    assert "convert" in caught.value.fix
    assert not (tmp_path / "exploded").exists()


def test_a_zip_by_any_name_is_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"PK\x03\x04\x00\x00\x08\x08 anything")
    with pytest.raises(CheckpointError, match="pickle"):
        refuse_pickle(tmp_path / "model.safetensors")


@pytest.mark.parametrize("length", [0x0280, 0x0380, 0x0480, 0x0580])
def test_a_header_whose_length_looks_like_a_pickle_is_read(tmp_path, length):
    raw = b"{}" + b" " * (length - 2)
    assert read_header(craft(tmp_path / "a.safetensors", raw)).tensors == {}


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ([np.nan, 1.0], [np.nan, 1.0], True),
        ([0.0], [-0.0], False),
        ([1.0, 2.0], [[1.0], [2.0]], False),
    ],
)
def test_same_bits_compares_bytes_of_one_shape(left, right, same):
    assert same_bits(np.array(left, np.float32), np.array(right, np.float32)) is same


CUT = """
import os, sys
from pathlib import Path
from erniecore_checkpoint.safetensors_io import open_tensors
tensors = open_tensors(Path("f.safetensors"))
values = tensors["last"].load()
os.truncate("f.safetensors", 500_000)
print(float(tensors["first"].load().sum()), flush=True)
values.sum()
"""


def test_a_file_that_is_truncated_while_a_tensor_is_read_ends_the_process(tmp_path):
    """No exception reaches the loop that reads: the process ends with the file, the tensor and both sizes."""
    write_safetensors(tmp_path / "f.safetensors", {"first": np.ones(50_000), "last": np.ones(50_000)})
    whole = (tmp_path / "f.safetensors").stat().st_size
    done = subprocess.run([sys.executable, "-c", CUT], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (5, "50000.0\n"), done.stderr
    assert done.stderr.startswith("f.safetensors: last: the file was truncated while it was in use (got 500000 bytes)")
    assert f"expected {whole} bytes" in done.stderr


def test_zeros_of_a_page_that_was_cut_are_an_error(tmp_path):
    """A cut within a page gives zeros, not SIGBUS: noticed when the tensor is released."""
    path = tmp_path / "f.safetensors"
    write_safetensors(path, {"first": np.ones(8), "last": np.ones(8)})
    tensors = open_tensors(path)
    values = tensors["last"].load()
    os.truncate(path, path.stat().st_size - 8)
    assert values[-1] == 0
    tensors["first"].release()
    with pytest.raises(CheckpointError, match="truncated while it was in use") as caught:
        tensors["last"].release()
    assert caught.value.where == f"{path}: last"
