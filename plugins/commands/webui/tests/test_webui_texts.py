"""Every text is there in every language, with the same gaps, and every key that a template uses exists."""

import re
import string
from pathlib import Path

import erniecore_webui
from erniecore_webui.navigation import in_navigation
from erniecore_webui.rendering import sentence
from erniecore_webui.texts import LANGUAGES, text, texts

TEMPLATES = Path(erniecore_webui.__file__).parent / "templates"


def gaps(pattern):
    return sorted(name for _, name, _, _ in string.Formatter().parse(pattern) if name)


def test_languages_have_the_same_keys_and_gaps():
    english = texts("en")
    for language in LANGUAGES:
        other = texts(language)
        assert english.keys() == other.keys()
        assert {key: gaps(text) for key, text in english.items()} == {key: gaps(text) for key, text in other.items()}
        assert all(text.strip() for text in other.values())


def test_templates_use_texts_that_exist():
    used = {
        key
        for path in TEMPLATES.glob("*.html")
        for key in re.findall(r"\bt\([\"']([\w.]+)[\"']", path.read_text(encoding="utf-8"))
    }
    exact = {key for key in used if not key.endswith(".")}
    assert len(exact) > 50
    assert exact <= texts("en").keys() | {"compare.by_"}
    assert all(f"nav.{page.name}" in texts("en") for page in in_navigation())


def test_templates_have_no_text_of_their_own():
    for path in TEMPLATES.glob("*.html"):
        text = re.sub(r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}|<[^>]*>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        own = set(re.findall(r"[A-Za-z]{3,}", text)) - {
            "erniecore",
            "ernie",
            "run",
            "demo",
            "model",
            "nbsp",
            "callback",
            "eval",
            "generate",
        }
        assert not own, f"{path.name}: {own}"


def test_one_is_told_as_one():
    assert [text("en", "runs.count", n=n) for n in (0, 1, "1", 2)] == ["0 runs", "1 run", "1 run", "2 runs"]


def test_descriptions_are_sentences_with_code():
    assert str(sentence("a `<b>` & c")) == "A <code>&lt;b&gt;</code> &amp; c"
    assert str(sentence("`auto`: <i>")) == "<code>auto</code>: &lt;i&gt;"
    assert str(sentence("")) == ""
