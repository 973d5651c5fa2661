"""Names, messages, docstrings and pages use the words of the field (docs/reference/glossary.md).

What is not done yet stands in ``words_allowed.txt``, a path and a word per line. The list only shrinks: `make docs` takes
out what is done, and an entry that says nothing any more fails here.
"""

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
    new = [
        f"{path}:{line} (say: {say[word]})"
        for (path, word), places in sorted(found.items())
        if (path, word) not in words.allowed()
        for line in places
    ]
    assert not new, "retired words:\n" + "\n".join(new)


def test_exceptions_are_still_needed(found):
    done = sorted(words.allowed() - set(found))
    assert not done, f"done; `make docs` takes them out of {words.ALLOWED.name}: {done}"


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
    ],
)
def test_other_meanings_are_not(path, source):
    assert not list(words.find(path, source))


def test_the_list_shrinks_and_follows_moved_code(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text("")
    (tmp_path / "words_allowed.txt").write_text(
        words.listing({("a.py", "card"), ("gone.py", "card"), ("b.py", "held")})
    )
    monkeypatch.setattr(words, "ROOT", tmp_path)
    monkeypatch.setattr(words, "ALLOWED", tmp_path / "words_allowed.txt")
    files = [("a.py", "held"), ("a.py", "new word"), ("c.py", "card"), ("d.py", "card"), ("e.py", "card")]
    monkeypatch.setattr(words, "findings", lambda: {key: ["1: it"] for key in files})
    assert words.shrunk() == words.listing({("a.py", "held"), ("c.py", "card"), ("d.py", "card")})
