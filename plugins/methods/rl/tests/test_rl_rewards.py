"""Rewards by example."""

import pytest
from erniecore_rl import rewards

from erniecore.api import ConfigError
from erniecore.api.reward import Completion


def completion(content, reference="", *, text=None, tokens=3, finished=True):
    return Completion("", content if text is None else text, content, "", reference, finished, tokens)


def reward(plugin, one, **config):
    (value,) = plugin.ernie_compute_rewards(plugin.Config(**config), [one])
    return value


@pytest.mark.parametrize(
    ("content", "reference", "config", "expected"),
    [
        ("4", "4", {}, 1.0),
        (" 4\n", "4", {}, 1.0),
        ("a  b", "a b", {}, 1.0),
        ("4.", "4", {}, 0.0),
        ("Paris", "paris", {}, 0.0),
        ("Paris", "paris", {"ignore_case": True}, 1.0),
    ],
)
def test_exact_match(content, reference, config, expected):
    assert reward(rewards.exact_match, completion(content, reference), **config) == expected


@pytest.mark.parametrize(
    ("content", "reference", "expected"),
    [
        ("the sum is 4 .", "4", 1.0),
        ("the sum is 42", "4", 0.0),
        ("a b c", "b c", 1.0),
        ("b x c", "b c", 0.0),
        ("x", "", 0.0),
    ],
)
def test_contains_whole_words(content, reference, expected):
    assert reward(rewards.contains, completion(content, reference)) == expected


@pytest.mark.parametrize(
    ("content", "config", "expected"),
    [
        ("12", {"pattern": r"\d+"}, 1.0),
        ("12 and", {"pattern": r"\d+"}, 0.0),
        ("12 and", {"pattern": r"\d+", "whole": False}, 1.0),
        ("a\nb", {"pattern": "a.b"}, 1.0),
    ],
)
def test_regex(content, config, expected):
    assert reward(rewards.regex, completion(content), **config) == expected


def test_regex_can_look_at_the_thinking_part():
    one = completion("4", text="<think>2+2</think>4")
    pattern = "<think>.+</think>.+"
    assert reward(rewards.regex, one, pattern=pattern, where="text") == 1
    assert reward(rewards.regex, one, pattern=pattern) == 0


def test_regex_refuses_a_broken_pattern():
    with pytest.raises(ValueError, match="no regular expression"):
        rewards.regex.Config(pattern="(")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("(a|a)+b", "a" * 100), ("(a|aa)+$", "a" * 90 + "b")],
)
def test_a_pattern_without_end_is_an_error_of_the_setting(monkeypatch, pattern, text):
    monkeypatch.setattr(rewards, "SECONDS", 0.2)
    with pytest.raises(ConfigError) as caught:
        reward(rewards.regex, completion(text), pattern=pattern)
    assert caught.value.code == "ERN-C012"
    said = str(caught.value)
    assert "rewards.regex.pattern" in said
    assert repr(pattern) in said
    assert f"{len(text)} characters" in said
    assert "instead of (a|aa)+" in said


def test_nested_repetition_ends():
    assert reward(rewards.regex, completion("a" * 40 + "!"), pattern="(a+)+") == 0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("it is 4", 4.0),
        ("4 or 5.", 5.0),
        ("-0.5", -0.5),
        ("1,234.5", 1234.5),
        ("x2", None),
        ("3e2", 300.0),
        ("1.2.3", None),
        ("", None),
        ("1e999", None),
        ("half: .5", 0.5),
        ("= 7%", 7.0),
    ],
)
def test_last_number(text, number):
    assert rewards.last_number(text) == number


@pytest.mark.parametrize(
    ("content", "reference", "config", "expected"),
    [
        ("about 3.14", "3.14159", {"absolute": 0.01}, 1.0),
        ("about 3.1", "3.14159", {"absolute": 0.01}, 0.0),
        ("101", "100", {"relative": 0.02}, 1.0),
        ("one", "1", {}, 0.0),
        ("1", "one", {}, 0.0),
        ("so 2 + 2 = 4", "#### 4", {}, 1.0),
    ],
)
def test_numeric(content, reference, config, expected):
    assert reward(rewards.numeric, completion(content, reference), **config) == expected


@pytest.mark.parametrize(("tokens", "expected"), [(1, 0.0), (10, 0.0), (15, -0.5), (20, -1.0), (99, -1.0)])
def test_length_penalty(tokens, expected):
    assert reward(rewards.length_penalty, completion("x", tokens=tokens), free=10, limit=20) == expected
