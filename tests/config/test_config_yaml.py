"""YAML 1.2 core schema, lines, and limits."""

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erniecore.config import yaml
from erniecore.config.sources import parse_value
from erniecore.config.values import scalar
from erniecore.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1E+3", 1000.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("-.inf", -math.inf),
        ("5", 5),
        ("+5", 5),
        ("012", 12),
        ("0o17", 15),
        ("0x1F", 31),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("on", "on"),
        ("yes", "yes"),
        ("No", "No"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("0b11", "0b11"),
        ("1e", "1e"),
        ("'5'", "5"),
        ('"true"', "true"),
        ("!!str 5", "5"),
        ("!!float 5", 5.0),
        ("[1, [a]]", [1, ["a"]]),
        ("{a: {b: 1}}", {"a": {"b": 1}}),
        ("|\n  1", "1\n"),
    ],
)
def test_core_schema(text, value):
    found = yaml.parse(f"key: {text}\n", "f")
    assert found.data == {"key": value}
    assert type(found.data["key"]) is type(value)


def test_nan_is_a_number():
    assert math.isnan(yaml.parse("a: .nan", "f").data["a"])


def test_every_key_and_item_has_its_line():
    text = "a: 1\n\nb:\n  # comment\n  c: 2\n  d:\n    - x\n    - e: 3\n"
    lines = yaml.parse(text, "f").lines
    assert lines == {
        ("a",): 1,
        ("b",): 3,
        ("b", "c"): 5,
        ("b", "d"): 6,
        ("b", "d", 0): 7,
        ("b", "d", 1): 8,
        ("b", "d", 1, "e"): 8,
    }


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "null"])
def test_nothing_is_empty_settings(text):
    assert yaml.parse(text, "f").data == {}


LAUGHS = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{n}: &{n} [{', '.join([f'*{p}'] * 10)}]\n" for p, n in zip("abcdefgh", "bcdefghi", strict=True)
)
REFUSED = {
    "duplicate": ("a: 1\nb: 2\na: 3\n", "f:3: key 'a' is given twice; first in line 1"),
    "inner duplicate": ("a:\n  b: 1\n  b: 1\n", "f:3: key 'b' is given twice; first in line 2"),
    "list": ("- 1\n", "f:1: must be a mapping of sections (got [1])"),
    "scalar": ("word", "f:1: must be a mapping of sections (got 'word')"),
    "merge": ("a: {<<: {b: 1}}", "f:1: merge keys (<<) are not part of YAML 1.2; use `extends: FILE`"),
    "number key": ("a:\n  1: x", "f:2: keys must be text (got 1); write it in quotes"),
    "truth key": ("true: x", "f:1: keys must be text (got True); write it in quotes"),
    "python": ("a: !!python/object/apply:os.system [x]", "f:1: tag tag:yaml.org,2002:python/object/apply:os.system"),
    "tag": ("a: !mine 3", "f:1: tag !mine is not allowed"),
    "set": ("a: !!set {b, c}", "f:1: tag tag:yaml.org,2002:set is not allowed"),
    "wrong tag": ("a: !!int x", "f:1: 'x' is not a int"),
    "documents": ("a: 1\n---\nb: 1\n", "f:2: more than one document (---)"),
    "open": ("a: 1\nb: [\n", "f:3: expected the node content"),
    "tab": ("a:\n\tb: 1\n", "f:2: a tab; indent with spaces"),
    "alias": ("a: *b", "f:1: found undefined alias 'b'"),
    "circle": ("a: &a [*a]", "f:1: nested deeper than 32 levels"),
    "deep": ("a: " + "[" * 2000, "f:1: nested deeper than 32 levels"),
    "laughs": (LAUGHS, "f:1: more than 50000 values, counting what aliases stand for"),
    "large": ("a: " + "x" * (1 << 20), "f: larger than 1 MiB"),
    "digits": ("a: " + "9" * 5000, "f:1: a number of 5000 digits"),
    "control": ("a: \x00", "f: unacceptable character"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_with_its_line(text, message):
    with pytest.raises(ConfigError) as caught:
        yaml.parse(text, "f")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        (" 1e-5 ", 1e-5),
        ("", ""),
        ("null", None),
        ("a.jsonl", "a.jsonl"),
        ("[a, 1]", ["a", 1]),
        ("{a: 1}", {"a": 1}),
        ("'5'", "5"),
        ("a: b", "a: b"),
        ("#1", "#1"),
        ("*", "*"),
        ("a, b", "a, b"),
    ],
)
def test_values_of_words(text, value):
    assert parse_value(text, "command line") == value


def test_a_broken_list_is_an_error_of_the_word():
    with pytest.raises(ConfigError, match=r"^command line: a=\[1"):
        parse_value("[1", "command line: a=[1")


@given(st.text(max_size=60))
def test_any_text_parses_or_is_refused(text):
    with contextlib.suppress(ConfigError):
        yaml.parse(text, "f")
    with contextlib.suppress(ConfigError):
        parse_value(text, "f")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(PLAIN)
def test_what_is_written_is_read_back(value):
    assert yaml.parse(f"key: {scalar(value)}  # comment", "f").data == {"key": value}
