"""Readers of files from elsewhere, given files that hypothesis makes up from the words of each format: they return, or raise
the error of their contract, and nothing else. ``make test`` tries some with a fixed seed, ``make fuzz`` many more.
"""

import json
import os
import struct
from contextlib import suppress

import pytest
from erniecore_runs.record import find_runs, read_run, row_statistics
from erniecore_system.files import parse_json
from erniecore_text import tokenizer_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from erniecore.checkpoint.manifest import read_manifest
from erniecore.checkpoint.safetensors_io import open_tensors
from erniecore.config import yaml
from erniecore.engine.models.weights import open_weights
from erniecore.errors import ConfigError, ErnieError

FUZZ = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "100")),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
WORDS = st.sampled_from(["dtype", "shape", "data_offsets", "__metadata__", "weight_map", "event", "step", "loss", "rows", "kept",
                         "bos_token", "added_tokens_decoder", "additional_special_tokens", "content", "F32", "BF16", "\x1b[31m",
                         "files", "groups", "format", "kind", "erniecore-checkpoint", "", "a", "\u202e", "nan"])  # fmt: skip
NUMBERS = st.one_of(
    st.integers(-3, 9), st.integers(), st.floats(), st.sampled_from([2**31, 2**63, 10**399, -(10**399)])
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, WORDS)
VALUES = st.recursive(
    LEAVES, lambda more: st.lists(more, max_size=4) | st.dictionaries(WORDS, more, max_size=5), max_leaves=12
)
OBJECTS = st.dictionaries(WORDS, VALUES, max_size=6)


@st.composite
def damaged(draw, texts):
    """Some text, of which a part may be cut out, doubled or replaced."""
    data = draw(texts)
    if not data or draw(st.booleans()):
        return data
    at, length = draw(st.integers(0, len(data))), draw(st.integers(0, 8))
    return (
        data[:at]
        + draw(st.sampled_from([b"", data[at : at + length] * 2, b"\xff", b"[" * 300, b"9" * 500]))
        + data[at + length :]
    )


def error_of(kind, function, *arguments):
    """The error of this kind with which a call ends; ``None``: it returns. Others go on."""
    try:
        function(*arguments)
    except kind as error:
        return error
    return None


TEXTS = damaged(VALUES.map(lambda value: json.dumps(value).encode()))
ENTRY = st.fixed_dictionaries({"dtype": st.sampled_from(["F32", "BF16", "I8"]) | VALUES,
                               "shape": st.lists(st.integers(0, 4), max_size=3) | VALUES,
                               "data_offsets": st.lists(st.integers(0, 64), min_size=2, max_size=2) | VALUES})  # fmt: skip
HEADERS = damaged(st.dictionaries(WORDS, ENTRY | VALUES, max_size=4).map(lambda value: json.dumps(value).encode()))


@FUZZ
@given(TEXTS | st.binary(max_size=200))
def test_json(data):
    assert "\n" not in str(error_of(ValueError, parse_json, data) or "")


@FUZZ
@given(HEADERS, st.integers(-9, 9), st.binary(max_size=64))
def test_headers_of_weights(tmp_path, header, more, body):
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", max(0, len(header) + more)) + header + body)
    error = error_of(ErnieError, lambda: [tensor.load() for tensor in open_tensors(file).values()])
    assert error is None or str(file) in error.where


@FUZZ
@given(damaged(OBJECTS.map(lambda value: json.dumps(value).encode())))
def test_indexes_of_weights(tmp_path, data):
    (tmp_path / "model.safetensors.index.json").write_bytes(data)
    with suppress(ErnieError):
        assert open_weights(tmp_path) == {}, "an index of nothing; the files that any other names are not there"


@FUZZ
@given(damaged(OBJECTS.map(lambda value: json.dumps(value).encode())))
def test_manifests_of_checkpoints(tmp_path, data):
    (tmp_path / "MANIFEST.json").write_bytes(data)
    with pytest.raises(ErnieError):
        read_manifest(tmp_path)


LINES = st.lists(st.sampled_from(["run:", "  seed: 1", "- a", "&a [*a]", "<<: *a", "{", "}", "[1, 2", "? [a]", "!!set {a}", "\t",
                                  "---", "'", '"\\x1b"', "k: |", "  text", "# c", "1e999", ".inf", "%YAML 1.2", "a: b: c"])
                 | st.text(max_size=12), max_size=12)  # fmt: skip


@FUZZ
@given(LINES.map("\n".join))
def test_yaml(text):
    error = error_of(ConfigError, yaml.parse, text, "a.yaml")
    assert error is None or "a.yaml" in str(error)


@FUZZ
@given(st.lists(TEXTS, max_size=6), TEXTS)
def test_events_of_runs(tmp_path, lines, report):
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(lines))
    (tmp_path / "data_report.json").write_bytes(report)
    record = read_run(find_runs(tmp_path)[0])
    row_statistics(record.data)
    assert [record.name, record.status, record.series("loss"), record.eval_series("loss")]


@FUZZ
@given(st.sampled_from(["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]),
       damaged(OBJECTS.map(lambda value: json.dumps(value).encode())))  # fmt: skip
def test_files_of_tokenizers(talker, tmp_path, file, data):
    (tmp_path / "tokenizer.model").write_bytes((talker / "model" / "tokenizer.model").read_bytes())
    (tmp_path / file).write_bytes(data)
    error_of(ErnieError, tokenizer_files.read, tmp_path)
    (tmp_path / file).unlink()
