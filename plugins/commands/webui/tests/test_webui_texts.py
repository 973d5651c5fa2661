"""Every text is there in every language, with the same gaps, and every key that a template uses exists."""

import re
import string
from pathlib import Path

import erniecore_webui
from erniecore_webui.navigation import in_navigation
from erniecore_webui.rendering import sentence
from erniecore_webui.run_form import Chosen, chosen, groups
from erniecore_webui.texts import LANGUAGES, described, descriptions, text, texts, type_text

from erniecore.api.installation import loadable
from erniecore.api.settings import MANY, RUN_KINDS

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


def all_descriptions():
    """What the pages show of settings, plugins and error codes: of the core, and of each plugin that is here."""
    from erniecore_webui.pages.errors import all_codes

    core = {field.description for group in groups(chosen({})) for field in group.fields}
    codes = {code.meaning for code in all_codes().values()}
    offered = {plugin.summary for kind in ("quantizer", "exporter") for plugin in loadable(kind)}
    sections = {
        field.description
        for kind in (*RUN_KINDS, *MANY.values())
        for plugin in loadable(kind)
        for section in [next((section for section, of in MANY.items() if of == kind), None)]
        for group in groups(Chosen({}, {section: (plugin.name,)}) if section else Chosen({kind: plugin.name}))
        for field in group.fields
    }
    return core, (core | codes | offered | sections) - {""}


def test_descriptions_are_there_in_chinese():
    core, known = all_descriptions()
    chinese = descriptions("zh")
    assert core - {""} <= chinese.keys()
    missing = sorted(known - chinese.keys())
    # others, whose plugin has just changed, are shown in English
    assert len(missing) <= len(known) / 20, missing
    assert not {english for english, text in chinese.items() if code_in(english) != code_in(text) or not text.strip()}


def code_in(text):
    return sorted(re.findall("`[^`]*`", text))


def test_what_nobody_has_translated_is_shown_in_english_and_says_so():
    assert described("zh", "Peak learning rate.") == ("学习率峰值。", "zh")
    assert described("zh", "Of somebody's plugin.") == ("Of somebody's plugin.", "en")
    assert described("en", "Peak learning rate.") == ("Peak learning rate.", "en")


def test_types_of_settings_are_told_in_each_language():
    for name in ("list of integer", "number or nothing ≥ 0 and ≤ 1", "text", "one of `a`, `b`", "mapping"):
        assert type_text("en", name) == name
    assert type_text("zh", "list of integer") == "整数列表"
    assert type_text("zh", "number or nothing ≥ 0 and ≤ 1") == "数，可留空 ≥ 0，≤ 1"
    assert type_text("zh", "list of {path, format}") == "list of {path, format}"


def test_one_is_told_as_one():
    assert [text("en", "runs.count", n=n) for n in (0, 1, "1", 2)] == ["0 runs", "1 run", "1 run", "2 runs"]


def test_descriptions_are_sentences_with_code():
    assert str(sentence("a `<b>` & c")) == "A <code>&lt;b&gt;</code> &amp; c"
    assert str(sentence("`auto`: <i>")) == "<code>auto</code>: &lt;i&gt;"
    assert str(sentence("")) == ""
