"""Tables as rows: cells, lines, and every error with its place."""

import json

import pytest

from erniecore import codes
from erniecore.data.opening import ReadLimits
from erniecore.data.reader import read_rows
from erniecore.errors import DataError, RowError


@pytest.fixture
def rows(tmp_path):
    def read(text, name="rows.csv", limits=None):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return list(read_rows(path, limits or ReadLimits()))

    return read


def described(row):
    return f"{row.code} {row.where} {row.found}" if isinstance(row, RowError) else row


def test_the_first_line_names_fields_and_a_position_is_a_line(rows):
    text = '\ufeffinstruction,output\r\nsay "no",no\r\n"a, b\r\nand ""c""",d\r\n\r\n,e\r\n'
    assert rows(text) == [
        (2, {"instruction": 'say "no"', "output": "no"}),
        (3, {"instruction": 'a, b\r\nand "c"', "output": "d"}),
        (6, {"output": "e"}),
    ]
    assert rows("src\ttgt\na, b\tc\n", "rows.tsv") == [(2, {"src": "a, b", "tgt": "c"})]


MESSAGES = [{"role": "user", "content": 'hi, "you"\n'}, {"content": "yes", "role": "assistant"}]


@pytest.mark.parametrize(
    ("column", "cell", "value"),
    [
        ("messages", json.dumps(MESSAGES), MESSAGES),
        ("chosen", json.dumps(MESSAGES[1:]), MESSAGES[1:]),
        ("dialogue", json.dumps(MESSAGES), MESSAGES),
        ("input", json.dumps({"messages": MESSAGES}), {"messages": MESSAGES}),
        ("history", '[["a", "b"]]', [["a", "b"]]),
        ("src", '["a", "b"]', ["a", "b"]),
        ("src", "[1] says so", "[1] says so"),
        ("label", "True", True),
        ("label", "[0, 1]", [0, 1]),
        ("margin", "0.5", 0.5),
        ("output", "42", "42"),
        ("output", '{"name": "f", "arguments": {}}', '{"name": "f", "arguments": {}}'),
        ("output", "True", "True"),
        ("chosen", "[1, 2]", "[1, 2]"),
    ],
)
def test_a_cell_is_a_text_but_where_no_format_has_one(rows, column, cell, value):
    quoted = cell.replace('"', '""')
    assert rows(f'{column},id\n"{quoted}",7\n') == [(2, {column: value, "id": "7"})]


def test_what_is_wrong_with_a_row_costs_that_row_alone(rows):
    lines = (
        "messages,system",
        '"[{""role"": ""user""}]",',
        "one,two,three",
        '"said "no"",x',
        "\"[{'role': 'user', 'content': 'hi'}]\",",
        '"[{""role"": ""user"", ""content"": ""\\ud800""}]",',
        "\\,fine",
    )
    found = [
        (line, described(row))
        for line, row in rows(
            "\n".join(lines).encode() + b"\n\xff,x\n" + b"y" * 300 + b"\nlast,\n", limits=ReadLimits(row_bytes=200)
        )
    ]
    assert found == [
        (2, {"messages": [{"role": "user"}]}),
        (3, "ERN-D033 $ 3"),
        (4, "ERN-D020 $ ',' expected after '\"'"),
        (5, "ERN-D020 $.messages \"[{'role': 'user', 'content': 'hi'}]\""),
        (6, "ERN-D023 $.messages[0].content "),
        (7, {"messages": "\\", "system": "fine"}),
        (8, "ERN-D021 $.messages byte 0xff"),
        (9, "ERN-D026 $ more than 200 bytes"),
        (10, {"messages": "last"}),
    ]


@pytest.mark.parametrize(
    ("text", "code", "where", "said"),
    [
        ("a,b,a\n1,2,3\n", codes.DUPLICATE_KEY, ":1", "'a'"),
        ("a;b\n1;2\n", codes.NOT_AN_ARRAY, ":1", "separated by ';'"),
        ("\n1,2\n", codes.NOT_AN_ARRAY, ":1", "an empty line"),
        ("a,b\n1,2\n" + '3,"4\n' + "5,6\n" * 3, codes.BROKEN_ARRAY, ":3", "unexpected end of data"),
        ("a,b\n1,2\n" + '3,"4\n' + "5,6\n" * 90, codes.BROKEN_ARRAY, ":", "more than 200 bytes"),
        ("a,b\n", codes.EMPTY_FILE, "rows.csv", "no rows"),
        ("a,b\n1,2\n".encode("utf-16"), codes.WRONG_ENCODING, "rows.csv", "UTF-16"),
    ],
)
def test_what_is_wrong_with_the_table_as_a_whole(rows, text, code, where, said):
    with pytest.raises(DataError) as e:
        rows(text, limits=ReadLimits(row_bytes=200))
    assert e.value.code == code
    assert where in e.value.where
    assert said in str(e.value)
