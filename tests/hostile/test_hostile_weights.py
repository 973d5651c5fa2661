"""Weight files and indexes that lie about what they hold: an error of the file, and nothing is run, followed or filled."""

import json
import pickle
import zipfile

import pytest
from hostile_files import WRONG, assert_refused, edit, with_header

from erniecore.errors import Exit

pytestmark = pytest.mark.area("weights, index, pickle")
REFUSED = {Exit.CHECKPOINT, Exit.ENVIRONMENT, Exit.MEMORY}
ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.fixture
def unlisted(model):
    """The model directory without hashes of its files: what it holds is all that is known."""
    (model / "erniecore_manifest.json").unlink(missing_ok=True)
    return model


@pytest.mark.parametrize(
    "change",
    [
        *[{"dtype": value} for value in (*WRONG, "F31", "\x1b[31m", "x" * 5000)],
        *[{"shape": value} for value in (*WRONG, [-1], [1.5], [True], ["2"], [10**30], [2] * 50, [0], None)],
        *[
            {"data_offsets": value}
            for value in (*WRONG, [0], [8, 0], [-8, 0], [0, 10**30], [0, 8, 9], [0.0, 8.0], None)
        ],
        {"more": 1},
        {"shape": [2**31, 2**31, 2**31]},
    ],
    ids=lambda change: json.dumps(change)[:40],
)
def test_a_header_that_is_wrong_about_a_tensor(loads, unlisted, change):
    def edited(header):
        name = next(key for key in header if key != "__metadata__")
        header[name] = {**header[name], **change}

    with_header(unlisted, edited)
    assert_refused(loads(), REFUSED, "model.safetensors")


@pytest.mark.parametrize("value", [*WRONG, None], ids=lambda value: json.dumps(value)[:40])
@pytest.mark.parametrize("key", ["__metadata__", "first", "more"])
def test_a_header_whose_entries_have_another_type(loads, unlisted, key, value):
    def edited(header):
        first = next(name for name in header if name != "__metadata__")
        header[first if key == "first" else key] = value

    with_header(unlisted, edited)
    outcome = loads()
    allowed = key == "__metadata__" and isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
    assert_refused(outcome, {0} if allowed else REFUSED, "model.safetensors")


def _framed(header, *, length=None, body=b""):
    return (len(header) if length is None else length).to_bytes(8, "little") + header + body


CONTENTS = {
    "empty": b"",
    "seven bytes": b"\0" * 7,
    "eight bytes": b"\0" * 8,
    "a length without end": b"\xff" * 8,
    "a length of a terabyte": _framed(b"{}", length=1 << 40),
    "a length beyond the file": _framed(b"{}", length=200),
    "no JSON": _framed(b"not json"),
    "a list": _framed(b"[]"),
    "nothing": _framed(b"{}"),
    "not UTF-8": _framed(b'{"\xff": 1}'),
    "deep": _framed(b'{"a":' * 20_000 + b"1" + b"}" * 20_000),
    "deep lists": _framed(b'{"a":' + b"[" * 90_000 + b"]" * 90_000 + b"}"),
    "digits": _framed(b'{"a": {"dtype": "F32", "shape": [' + b"9" * 6000 + b'], "data_offsets": [0, 8]}}'),
    "a float of digits": _framed(b'{"a": {"dtype": "F32", "shape": [1e' + b"9" * 600 + b'], "data_offsets": [0, 8]}}'),
    "NaN": _framed(b'{"a": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 8]}}'),
    "twice": _framed(b'{"a": 1, "a": 2}'),
    "overlap": _framed(json.dumps({"a": ENTRY, "b": ENTRY}).encode(), body=bytes(8)),
    "gap": _framed(json.dumps({"a": {**ENTRY, "data_offsets": [8, 16]}}).encode(), body=bytes(16)),
    "spare bytes": _framed(json.dumps({"a": ENTRY}).encode(), body=bytes(80)),
    "a million names": _framed(json.dumps({f"t{n}": 1 for n in range(100_000)}).encode()),
    "a long name": _framed(json.dumps({"n" * 1_000_000: ENTRY}).encode(), body=bytes(8)),
    "pickle 2": pickle.dumps({"a": 1}, protocol=2),
    "pickle 4": pickle.dumps({"a": 1}, protocol=4),
    "a class in a pickle": b"cposix\nsystem\n(S'touch hacked'\ntR.",
    "zip": b"PK\x03\x04" + bytes(64),
    "gzip": b"\x1f\x8b\x08" + bytes(64),
    "text": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
    "html": b"<!DOCTYPE html><html>404</html>",
}


@pytest.mark.parametrize("content", CONTENTS)
def test_a_file_that_is_no_safetensors(loads, unlisted, content):
    (unlisted / "model.safetensors").write_bytes(CONTENTS[content])
    assert_refused(loads(), REFUSED)
    assert not (unlisted.parent / "hacked").exists()


@pytest.mark.parametrize("content", ["empty", "no JSON", "overlap", "pickle 4", "deep", "text"])
def test_a_shard_that_is_no_safetensors(loads, unlisted, content):
    names = json.loads((unlisted / "model.safetensors").read_bytes()[8:].partition(b"}}")[0] + b"}}")
    (unlisted / "model.safetensors").unlink()
    edit(unlisted / "model.safetensors.index.json", weight_map=dict.fromkeys(names, "model-1.safetensors"))
    (unlisted / "model-1.safetensors").write_bytes(CONTENTS[content])
    assert_refused(loads(), REFUSED, "model-1.safetensors")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pdparams", "model.pt", "model.pkl", "model.ckpt"])
@pytest.mark.parametrize("how", ["pickle", "zip"])
def test_weights_that_could_run_code_are_never_opened(loads, unlisted, name, how):
    (unlisted / "model.safetensors").unlink()
    if how == "pickle":
        (unlisted / name).write_bytes(CONTENTS["a class in a pickle"])
    else:
        with zipfile.ZipFile(unlisted / name, "w") as archive:
            archive.writestr("archive/data.pkl", CONTENTS["a class in a pickle"])
    assert_refused(loads(), REFUSED)
    assert not (unlisted.parent / "hacked").exists()


MAPS = [*WRONG, None, {"a": 5}, {"a": None}, {"a": ["x"]}, {"a": ""}, {"a": "."}, {"a": ".."}, {"a": "a/b.safetensors"},
        {"a": "config.json"}, {"a": "none.safetensors"}, {"a": "\0"}, {"\x1b[31m": "model.safetensors"},
        {f"t{n}": f"s{n}.safetensors" for n in range(3000)}]  # fmt: skip


@pytest.mark.parametrize("value", MAPS, ids=lambda value: json.dumps(value)[:30])
def test_an_index_that_maps_to_nowhere(loads, unlisted, value):
    (unlisted / "model.safetensors").rename(unlisted / "other.safetensors")
    edit(unlisted / "model.safetensors.index.json", weight_map=value)
    assert_refused(loads(), REFUSED)


@pytest.mark.parametrize("bits", [0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001], ids=["inf", "-inf", "nan", "snan"])
@pytest.mark.parametrize("where", ["first", "last"])
def test_weights_that_are_not_finite_are_never_used(loads, unlisted, where, bits):
    file = unlisted / "model.safetensors"
    data = bytearray(file.read_bytes())
    at = 8 + int.from_bytes(data[:8], "little") if where == "first" else len(data) - 4
    data[at : at + 4] = bits.to_bytes(4, "little")
    file.write_bytes(data)
    assert_refused(loads(), {Exit.NUMERICS}, "model.safetensors")
