"""Readers of files from elsewhere, given files that hypothesis makes up from the words of each format: they return, or raise
the error of their contract, and nothing else. ``make test`` tries some,
always the same, ``make fuzz`` others for minutes.
"""

import json
import shutil
import struct
from contextlib import suppress

import pytest
from erniecore_checkpoint.manifest import read_manifest
from erniecore_checkpoint.safetensors_io import open_tensors
from erniecore_runs.record import find_runs, read_run, row_statistics
from erniecore_system.files import parse_json
from erniecore_text import tokenizer_files
from fuzzing import fuzzed, kept
from hypothesis import given
from hypothesis import strategies as st

from erniecore import registry
from erniecore.config import imported, yaml
from erniecore.data.decoding import decode_row
from erniecore.data.parsing import RowParser
from erniecore.engine.models.weights import open_weights
from erniecore.errors import ConfigError, ErnieError, RowError
from erniecore.host import assemble, call_one
from erniecore.types.records import Origin

FUZZ = fuzzed(100)
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
@kept("data")
def test_json(data):
    assert "\n" not in str(error_of(ValueError, parse_json, data) or "")


@FUZZ
@given(HEADERS, st.integers(-9, 9), st.binary(max_size=64))
@kept("header", "more", "body")
def test_headers_of_weights(tmp_path, header, more, body):
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", max(0, len(header) + more)) + header + body)
    error = error_of(ErnieError, lambda: [tensor.load() for tensor in open_tensors(file).values()])
    assert error is None or str(file) in error.where


@FUZZ
@given(damaged(OBJECTS.map(lambda value: json.dumps(value).encode())))
@kept("data")
def test_indexes_of_weights(tmp_path, data):
    (tmp_path / "model.safetensors.index.json").write_bytes(data)
    with suppress(ErnieError):
        assert open_weights(tmp_path) == {}, "an index of nothing; the files that any other names are not there"


@FUZZ
@given(damaged(OBJECTS.map(lambda value: json.dumps(value).encode())))
@kept("data")
def test_manifests_of_checkpoints(tmp_path, data):
    (tmp_path / "MANIFEST.json").write_bytes(data)
    with pytest.raises(ErnieError):
        read_manifest(tmp_path)


LINES = st.lists(st.sampled_from(["run:", "  seed: 1", "- a", "&a [*a]", "<<: *a", "{", "}", "[1, 2", "? [a]", "!!set {a}", "\t",
                                  "---", "'", '"\\x1b"', "k: |", "  text", "# c", "1e999", ".inf", "%YAML 1.2", "a: b: c"])
                 | st.text(max_size=12), max_size=12)  # fmt: skip


@FUZZ
@given(LINES.map("\n".join))
@kept("text")
def test_yaml(text):
    error = error_of(ConfigError, yaml.parse, text, "a.yaml")
    assert error is None or "a.yaml" in str(error)


@FUZZ
@given(st.lists(TEXTS, max_size=6), TEXTS)
@kept("lines", "report")
def test_events_of_runs(tmp_path, lines, report):
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(lines))
    (tmp_path / "data_report.json").write_bytes(report)
    record = read_run(find_runs(tmp_path)[0])
    row_statistics(record.data)
    assert [record.name, record.status, record.series("loss"), record.eval_series("loss")]


@FUZZ
@given(st.sampled_from(["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]),
       damaged(OBJECTS.map(lambda value: json.dumps(value).encode())))  # fmt: skip
@kept("file", "data")
def test_files_of_tokenizers(talker, tmp_path, file, data):
    (tmp_path / "tokenizer.model").write_bytes((talker / "model" / "tokenizer.model").read_bytes())
    (tmp_path / file).write_bytes(data)
    error_of(ErnieError, tokenizer_files.read, tmp_path)
    (tmp_path / file).unlink()


def plugins_of(kind):
    """Name -> plugin, of those that this repository has."""
    return {
        plugin.name: plugin for plugin in registry.loadable(kind) if plugin.__class__.__module__.startswith("erniecore")
    }


FORMATS = {name: plugin for name, plugin in plugins_of("format").items() if getattr(plugin, "examples", ())}
ROWS = [(name, row) for name, plugin in FORMATS.items() for row in plugin.examples]


@st.composite
def changed(draw, values):
    """One of these with some of its parts replaced, at any depth."""

    def change(value, depth=0):
        if draw(st.integers(0, 9)) == 0:
            return draw(VALUES | st.text(max_size=9))
        if isinstance(value, dict):
            found = {key: change(one, depth + 1) for key, one in value.items() if draw(st.integers(0, 19))}
            return {**found, **(draw(OBJECTS) if draw(st.integers(0, 9)) == 0 else {})}
        if isinstance(value, list | tuple):
            return [change(one, depth + 1) for one in value for _ in range(draw(st.sampled_from([0, 1, 1, 1, 1, 2])))]
        return value

    return change(draw(values))


@st.composite
def rows(draw):
    """The format and the bytes of a row."""
    name, row = draw(st.sampled_from(ROWS))
    return name, draw(damaged(changed(st.just(dict(row))).map(lambda value: json.dumps(value).encode())))


@FUZZ
@given(rows())
@kept("row")
def test_rows_of_formats(row):
    name, data = row
    value = decode_row(data, 0)
    if isinstance(value, RowError):
        return
    for one, plugin in FORMATS.items():
        parser = RowParser(plugin)
        matches = call_one(plugin, "ernie_match_row", row=value)
        assert matches in (True, False)
        if matches or one == name:
            error = error_of(RowError, parser, value, Origin("rows.jsonl", 1))
            assert error is None or (error.code and error.where.startswith("$")), error


@pytest.fixture(scope="module")
def described(talker, tmp_path_factory):
    """A model directory whose config.json the test writes, and that of the model."""
    home = shutil.copytree(talker / "model", tmp_path_factory.mktemp("described") / "model")
    (home / "erniecore_manifest.json").unlink()
    return home, json.loads((talker / "model" / "config.json").read_text())


@FUZZ
@given(st.dictionaries(st.integers(0, 99), VALUES, max_size=3), st.dictionaries(WORDS, VALUES, max_size=2))
@kept("changes", "more")
def test_config_json(described, changes, more):
    from erniecore.engine.models.bundles import load_bundle

    home, config = described
    keys = sorted(config)
    new = {**config, **{keys[number % len(keys)]: value for number, value in changes.items()}, **more}
    (home / "config.json").write_text(json.dumps(new))
    with suppress(ErnieError):
        load_bundle(home, tokenizer=False)


def importer_keys(plugin):
    return assemble({"importer": plugin}).hook.ernie_describe_keys().keys


IMPORTERS = plugins_of("importer")
KEYS = sorted({key for name in IMPORTERS for key in importer_keys(IMPORTERS[name])})
FOREIGN = st.dictionaries(
    st.sampled_from(KEYS) | WORDS,
    VALUES | st.sampled_from(["1e999", "a,b", "None", "true", "0.1", "9" * 400]),
    max_size=9,
)


@FUZZ
@given(damaged(FOREIGN.map(lambda value: json.dumps(value).encode())), st.sampled_from(["json", "yaml"]))
@kept("data", "suffix")
def test_settings_of_other_toolkits(tmp_path, data, suffix):
    file = tmp_path / f"settings.{suffix}"
    file.write_bytes(data)
    try:
        content = imported.read(file)
    except ErnieError:
        return
    for plugin in IMPORTERS.values():
        with suppress(ConfigError):
            outcome = imported.import_file(content, plugin)
            json.dumps({key: setting.value for key, setting in outcome.settings.items()})
