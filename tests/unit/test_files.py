"""Files that somebody else may have written: their limits, and what reaches a terminal of them."""

import os

import pytest
from hostile_files import DEEP, SPECIAL, special

from erniecore.api.files import parse_json, printable, read_bytes, read_json, read_object, read_text
from erniecore.errors import CheckpointError


@pytest.mark.parametrize("kind", SPECIAL)
def test_only_files_are_opened(tmp_path, kind):
    special(tmp_path / "x", kind)
    name = "a device" if kind == "device" else f"a {kind}"
    with pytest.raises(OSError, match=f"this is {name}, not a file"):
        read_bytes(tmp_path / "x")


def test_a_file_is_read_up_to_its_limit(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    assert read_bytes(tmp_path / "x", 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_bytes(tmp_path / "x", 4)


def test_text_is_utf8_with_or_without_a_mark(tmp_path):
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbf\xc3\xa4")
    assert read_text(tmp_path / "x") == "ä"
    (tmp_path / "x").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="it is not UTF-8 text"):
        read_text(tmp_path / "x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 101 + "]" * 101, "nested more than 100 levels"),
        ("[" * DEEP, "nested more than 100 levels"),
        ('{"a":' * DEEP, "nested more than 100 levels"),
        ("9" * 401, "a number has 401 characters"),
        ("1." + "0" * 400, "a number has 402 characters"),
        ('{"' + "x" * 8193 + '": 1}', "a name has 8193 characters"),
        (b"\xff", "not UTF-8"),
        ("{'a': 1}", "double quotes"),
    ],
)
def test_json_has_limits(text, message):
    with pytest.raises(ValueError, match=message):
        parse_json(text)


@pytest.mark.parametrize(
    "text", ["[" * 100 + "]" * 100, "9" * 400, '"' + "[" * 1000 + '"', '{"a": [1, 2.5, null]}', b"\xef\xbb\xbf{}"]
)
def test_json_within_the_limits_is_read(text):
    import json

    assert parse_json(text) == json.loads(text if isinstance(text, str) else text[3:])


def test_an_object_or_an_error_of_the_file(tmp_path):
    file = tmp_path / "x.json"
    for content, message in ((b"[]", "no JSON object"), (b"{", "not valid JSON"), (None, "cannot be read")):
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        with pytest.raises(CheckpointError, match=message) as error:
            read_object(file, CheckpointError, code="ERN-K021", fix="fetch it again")
        assert (error.value.where, error.value.code, error.value.fix) == (str(file), "ERN-K021", "fetch it again")
    file.write_text('{"a": 1}')
    assert read_object(file, CheckpointError) == read_json(file) == {"a": 1}


def test_control_characters_become_text():
    assert printable("a\x1b[31m\x07\r\x9b\u202e\tb\nc") == "a\\x1b[31m\\x07\\r\\x9b\\u202e\tb\nc"
    assert printable("\x1b[32mok\x1b[0m\x1b[2J", colors=True) == "\x1b[32mok\x1b[0m\\x1b[2J"


def test_json_output_stays_json_and_commands_no_terminal(capsys):
    import json

    from erniecore.cli.render import show_json

    show_json({"name": "\x1b[31m\x9b\u202e"})
    out = capsys.readouterr().out
    assert json.loads(out) == {"name": "\x1b[31m\x9b\u202e"}
    assert not {"\x1b", "\x9b", "\u202e"} & set(out)


def test_a_directory_that_may_not_be_entered_is_an_error(tmp_path):
    assert not os.path.isfile(tmp_path / ("x" * 300))
    with pytest.raises(OSError, match="name too long"):
        read_bytes(tmp_path / ("x" * 300))
