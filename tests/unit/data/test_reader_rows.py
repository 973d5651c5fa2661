"""Rows of data files: every kind of damage has its own code and place, and nothing is lost."""

import gzip
import json
from pathlib import Path

import pytest
from erniecore_formats import json_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from erniecore import codes
from erniecore.data.decoding import decode_row
from erniecore.data.opening import ReadLimits
from erniecore.data.reader import read_rows
from erniecore.errors import DataError, RowError


def rows(path, **limits):
    return list(read_rows(path, ReadLimits(**limits)))


def write(tmp_path, data, name="d.jsonl"):
    path = tmp_path / name
    path.write_bytes(data)
    return path


DAMAGE = [
    pytest.param(b'{"a": 1', codes.MALFORMED, "line 2, column", id="cut"),
    pytest.param(b"{'a': 1}", codes.MALFORMED, "line 2, column 2", id="single quotes"),
    pytest.param(b'{"a": 1} {"b": 2}', codes.MALFORMED, "column 10", id="two rows on a line"),
    pytest.param(b'{"a": 1,}', codes.MALFORMED, "column", id="trailing comma"),
    pytest.param(b'{"a": "\xff"}', codes.BAD_UTF8, "0xff at 8", id="invalid byte"),
    pytest.param(b'{"a": "\xed\xa0\x80"}', codes.BAD_UTF8, "0xed", id="surrogate in bytes"),
    pytest.param(b'{"a": "x\x00y"}', codes.NUL, "column", id="raw NUL"),
    pytest.param(b'{"a": {"b": ["x", "\\u0000"]}}', codes.NUL, "$.a.b[1]", id="escaped NUL"),
    pytest.param(b'{"a": "\\ud83d"}', codes.LONE_SURROGATE, "$.a", id="lone surrogate"),
    pytest.param(b'{"a": "\\uDE00"}', codes.LONE_SURROGATE, "$.a", id="lone low surrogate"),
    pytest.param(b'{"a": NaN}', codes.NOT_FINITE, "NaN", id="NaN"),
    pytest.param(b'{"a": -Infinity}', codes.NOT_FINITE, "-Infinity", id="Infinity"),
    pytest.param(b'{"a": 1e999}', codes.NOT_FINITE, "1e999", id="overflow"),
    pytest.param(b'{"a": ' + b"9" * 5000 + b"}", codes.NOT_FINITE, "", id="huge integer"),
    pytest.param(b'{"a": 1, "a": 2}', codes.DUPLICATE_KEY, "'a'", id="duplicate key"),
    pytest.param(b'{"x": [{"a": 1, "a": 2}]}', codes.DUPLICATE_KEY, "'a'", id="duplicate key inside"),
    pytest.param(b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}", codes.TOO_DEEP, "levels", id="deep"),
    pytest.param(b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", codes.TOO_DEEP, "levels", id="very deep"),
    pytest.param(b"[1, 2]", codes.NOT_AN_OBJECT, "[1, 2]", id="array as row"),
    pytest.param(b'"text"', codes.NOT_AN_OBJECT, "'text'", id="text as row"),
    pytest.param(b"null", codes.NOT_AN_OBJECT, "None", id="null as row"),
]


@pytest.mark.parametrize(("raw", "code", "place"), DAMAGE)
def test_bad_line_has_its_code_and_the_next_line_is_read(tmp_path, raw, code, place):
    found = rows(write(tmp_path, b'{"ok": 1}\n' + raw + b'\n{"ok": 2}\n'))
    assert [line for line, _ in found] == [1, 2, 3]
    error = found[1][1]
    assert isinstance(error, RowError)
    assert error.code == code
    assert place in f"{error} {error.where}"
    assert found[2][1] == {"ok": 2}


@pytest.mark.parametrize(("raw", "code", "place"), [p for p in DAMAGE if p.id not in {"cut", "two rows on a line"}])
def test_bad_element_of_an_array_costs_that_row_only(tmp_path, raw, code, place):
    found = rows(write(tmp_path, b'[\n{"ok": 1},\n' + raw + b',\n{"ok": 2}\n]\n', "d.json"))
    assert [line for line, _ in found] == [2, 3, 4]
    assert found[1][1].code == code
    assert found[2][1] == {"ok": 2}


@pytest.mark.parametrize(
    "text",
    ['{"a": "\\\\u0000"}', '{"a": "\\\\ud800"}', '{"a": "\\ud83d\\ude00"}', '{"a": "[[[[" }', '{"NaN": "Infinity"}'],
)
def test_harmless_lookalikes_pass(text):
    assert decode_row(text.encode(), 1, ReadLimits(depth=3)) == json.loads(text)


def test_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path):
    assert rows(write(tmp_path, b'\xef\xbb\xbf{"a": 1}\r\n\r\n{"a": 2}\r\n')) == [(1, {"a": 1}), (3, {"a": 2})]


def test_last_line_needs_no_line_end(tmp_path):
    assert rows(write(tmp_path, b'{"a": 1}\n{"a": 2}')) == [(1, {"a": 1}), (2, {"a": 2})]


def test_unicode_line_separators_do_not_split_rows(tmp_path):
    text = '{"a": "x\u2028y\x85z"}\n'
    assert rows(write(tmp_path, text.encode())) == [(1, {"a": "x\u2028y\x85z"})]


def test_row_of_a_spread_out_array_has_the_line_where_it_starts(tmp_path):
    text = '[\n  {\n    "a": 1\n  },\n\n  {"a": 2}, {\n"a": 3}]'
    assert rows(write(tmp_path, text.encode(), "d.json")) == [(2, {"a": 1}), (6, {"a": 2}), (6, {"a": 3})]


def test_error_inside_a_spread_out_row_names_its_own_line(tmp_path):
    text = '[\n  {\n    "a": 1,\n    "b": oops\n  }\n]'
    ((line, error),) = rows(write(tmp_path, text.encode(), "d.json"))
    assert line == 2
    assert "line 4, column 10" in str(error)


@pytest.mark.parametrize("name", ["d.jsonl", "d.json"])
def test_row_beyond_the_limit_is_skipped_with_an_error(tmp_path, name):
    big = b'{"a": "' + b"\\\\x" * 4_000_000 + b'"}'
    parts = [b'{"ok": 1}', big, b'{"ok": 2}']
    data = b"\n".join(parts) if name == "d.jsonl" else b"[" + b",\n".join(parts) + b"]"
    found = rows(write(tmp_path, data, name), row_bytes=1 << 20)
    assert [getattr(r, "code", r) for _, r in found] == [{"ok": 1}, codes.TOO_LONG_ROW, {"ok": 2}]


def test_gzip_is_read(tmp_path):
    path = write(tmp_path, gzip.compress(b'{"a": 1}\n{"a": 2}\n', mtime=0), "d.jsonl.gz")
    assert rows(path) == [(1, {"a": 1}), (2, {"a": 2})]


def test_gzip_that_ends_early_is_an_error_after_its_rows(tmp_path):
    lines = "".join(json.dumps({"a": i, "b": str(i * 7919)}) + "\n" for i in range(50_000)).encode()
    path = write(tmp_path, gzip.compress(lines, mtime=0)[:-2000], "d.jsonl.gz")
    found = read_rows(path)
    assert next(found) == (1, {"a": 0, "b": "0"})
    with pytest.raises(DataError) as e:
        list(found)
    assert e.value.code == codes.BAD_GZIP


def test_gzip_bomb_is_stopped(tmp_path):
    path = write(tmp_path, gzip.compress(b'{"a": "' + b"x" * 3_000_000 + b'"}\n', mtime=0), "d.jsonl.gz")
    with pytest.raises(DataError) as e:
        rows(path, gzip_free=1_000_000)
    assert e.value.code == codes.GZIP_BOMB


WHOLE = [
    ("d.jsonl", b"", codes.EMPTY_FILE),
    ("d.jsonl", b"\n \n", codes.EMPTY_FILE),
    ("d.json", b"[]", codes.EMPTY_FILE),
    ("d.json", b"[\n]\n", codes.EMPTY_FILE),
    ("d.xml", b"<a/>\n", codes.UNKNOWN_FILE_TYPE),
    ("d.jsonl.gz", b'{"a": 1}\n', codes.BAD_GZIP),
    ("d.jsonl", gzip.compress(b'{"a": 1}\n', mtime=0), codes.WRONG_ENCODING),
    ("d.jsonl", '{"a": 1}\n'.encode("utf-16"), codes.WRONG_ENCODING),
    ("d.json", b'{"a": 1} {"a": 2}', codes.NOT_AN_ARRAY),
    ("d.json", b'{\n"a": 1\n', codes.BROKEN_ARRAY),
    ("d.jsonl", b'{\n"a": 1\n},\n{\n"a": 2\n}', codes.BROKEN_ARRAY),
    ("d.jsonl", b'[\n{"a": 1}', codes.BROKEN_ARRAY),
    ("d.json", b'[{"a": 1}', codes.BROKEN_ARRAY),
    ("d.json", b'[{"a": 1}] x', codes.BROKEN_ARRAY),
    ("d.json", b'[{"a": 1}] [{"a": 2}]', codes.BROKEN_ARRAY),
    ("d.json", b'[{"a": "1}]', codes.BROKEN_ARRAY),
]


@pytest.mark.parametrize(("name", "data", "code"), WHOLE)
def test_file_that_is_wrong_as_a_whole_is_raised(tmp_path, name, data, code):
    with pytest.raises(DataError) as e:
        rows(write(tmp_path, data, name))
    assert e.value.code == code
    assert str(tmp_path / name) in e.value.where


def test_missing_file_names_the_nearest(tmp_path):
    write(tmp_path, b'{"a": 1}\n', "train.jsonl")
    with pytest.raises(DataError, match=r"train\.jsonl") as e:
        rows(tmp_path / "trian.jsonl")
    assert e.value.code == codes.MISSING_FILE


def test_json_file_may_hold_lines(tmp_path):
    assert rows(write(tmp_path, b'{"a": 1}\n{"a": 2}\n', "d.json")) == [(1, {"a": 1}), (2, {"a": 2})]


@pytest.mark.parametrize("name", ["d.json", "d.jsonl"])
def test_arrays_and_spread_out_objects_are_read_by_either_name(tmp_path, name):
    assert rows(write(tmp_path, b'[{"a": 1}, {"a": 2}]', name)) == [(-1, {"a": 1}), (-2, {"a": 2})]
    assert rows(write(tmp_path, b'\n{\n "a": {"b": "}\\"{"}\n}\n{\n "a": 2}', name)) == [
        (2, {"a": {"b": '}"{'}}),
        (5, {"a": 2}),
    ]


def test_broken_object_among_spread_out_ones_costs_that_row_only(tmp_path):
    (one, bad, two) = rows(write(tmp_path, b'{\n"a": 1\n}\n{\n"a": tru\n}\n{\n"a": 2\n}'))
    assert (one, two) == ((1, {"a": 1}), (7, {"a": 2}))
    assert bad[0] == 4
    assert "line 5, column 6" in str(bad[1])


def test_spread_out_object_beyond_the_limit_is_skipped_with_an_error(tmp_path):
    big = b'{\n"a": "' + b"x" * 4_000_000 + b'"\n}'
    found = rows(write(tmp_path, b'{\n"ok": 1\n}\n' + big + b'\n{\n"ok": 2\n}'), row_bytes=1 << 20)
    assert [getattr(r, "code", r) for _, r in found] == [{"ok": 1}, codes.TOO_LONG_ROW, {"ok": 2}]


def test_pattern_names_all_files_that_it_matches(tmp_path):
    for number, name in enumerate(["b.jsonl", "a.jsonl", "c.txt"]):
        write(tmp_path, b'{"a": %d}\n' % number, name)
    assert rows(tmp_path / "[ab].jsonl") == [(1, {"a": 1}), (2, {"a": 0})]
    assert rows(tmp_path / "**" / "b.js*") == [(1, {"a": 0})]
    write(tmp_path, b'{"a": 9}\n', "x[1].jsonl")
    assert rows(tmp_path / "x[1].jsonl") == [(1, {"a": 9})]


@pytest.mark.parametrize(("pattern", "code"), [("x*", codes.MISSING_FILE), ("[ac].*", codes.WHICH_SPLIT)])
def test_pattern_without_rows_of_one_kind_is_an_error(tmp_path, pattern, code):
    write(tmp_path, b'{"a": 1}\n', "a.jsonl")
    write(tmp_path, b"a\n", "c.txt")
    with pytest.raises(DataError) as e:
        rows(tmp_path / pattern)
    assert (e.value.code, e.value.where) == (code, str(tmp_path / pattern))


@pytest.mark.parametrize("name", ["tatsu-lab/alpaca", "owner/data-1.5:train"])
def test_hub_id_is_told_apart_from_a_missing_file(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="the id of a data set, which is not fetched unless the hub is named") as e:
        rows(Path(name))
    assert e.value.fix.endswith(f"name it hf:{name}")


def test_codes_are_unique_and_explained():
    names = [v for k, v in vars(codes).items() if k.isupper() and isinstance(v, str)]
    assert len(set(names)) == len(names)
    assert set(names) == set(codes.MEANINGS)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-99, 99)
    | st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab[]{}\\",', max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(
    data=st.lists(st.dictionaries(st.text("xyz", max_size=2), VALUES, max_size=3), min_size=1, max_size=5),
    chunk=st.integers(1, 40),
    indent=st.sampled_from([None, 1]),
    ascii_=st.booleans(),
)
def test_array_is_read_as_json_reads_it_whatever_the_chunks(tmp_path_factory, data, chunk, indent, ascii_):
    path = tmp_path_factory.mktemp("array") / "d.json"
    path.write_text(json.dumps(data, indent=indent, ensure_ascii=ascii_), encoding="utf-8")
    before = json_rows._CHUNK
    json_rows._CHUNK = chunk
    try:
        found = [row for _, row in read_rows(path)]
    finally:
        json_rows._CHUNK = before
    assert found == data
