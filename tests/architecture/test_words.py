"""Names, messages, docstrings and pages use the words of the field (docs/reference/glossary.md)."""

import importlib.util
import sys
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("words", Path(__file__).with_name("words.py"))
words = sys.modules["words"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(words)


@pytest.fixture(scope="module")
def found():
    """What the repository has of retired words."""
    return words.findings()


def test_retired_words_are_not_used(found):
    say = {rule.word: rule.say for rule in words.RULES} | {words.SHORT: "a sentence that says something, or none"}
    new = [f"{path}:{line} (say: {say[word]})" for (path, word), places in sorted(found.items()) for line in places]
    assert not new, "retired words:\n" + "\n".join(new)


@pytest.mark.parametrize(
    ("path", "source", "word"),
    [
        ("erniecore/a.py", "learned_tokens = 1\n", "learned tokens"),
        ("erniecore/a.py", "class AskedTeacher: ...\n", "asked teacher"),
        ("erniecore/a.py", "def f(held): ...\n", "held"),
        ("erniecore/roll_call.py", "a = 1\n", "roll call"),
        ("erniecore/a.py", "raise ValueError('it is made again')\n", "made again"),
        ("erniecore/a.py", "a = 1  # Quantised\n", "spelling"),
        ("erniecore/a.py", 'def f():\n    """Nothing."""\n', words.SHORT),
        ("docs/a.md", "One card.\n", "card"),
    ],
)
def test_a_retired_word_is_found(path, source, word):
    assert word in [found for found, _, _ in words.find(path, source)]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("erniecore/a.py", '"""Rows, shards and streams; a key is held until its answer comes."""\nupstream = 1\n'),
        ("erniecore/a.py", "def _f():\n    '''Nothing.'''\n"),
        ("plugins/quantizers/ccq/a.py", "codes = form = 1\n"),
        ("plugins/methods/rl/a.md", "The final answer and the reference answer are compared.\n"),
        ("docs/a.md", "The model card, a color, the behavior.\n"),
        ("docs/a.md", "`--card 8` and `cards: 8` in a file; 0.1.0 wrote `quarantine.json`.\n"),
        ("erniecore/a.py", "def settings_customise_sources(): ...\n"),
    ],
)
def test_other_meanings_are_not(path, source):
    assert not list(words.find(path, source))
