"""The chat templates against the golden prompt strings, and which tokenizer directory gets which."""

import json

import pytest
from erniecore_ernie45.templating import TEMPLATES, builtin_source, choose_template
from erniecore_text import JinjaChatTemplate

from erniecore.api import ConfigError, RowError
from erniecore.api.data import Message, ToolCall


def template(name):
    return JinjaChatTemplate(builtin_source(name), turn_end=TEMPLATES[name].turn_end, stop=TEMPLATES[name].stop)


def messages(rows):
    return [
        Message(
            row["role"],
            row["content"],
            row.get("reasoning_content", ""),
            tuple(
                ToolCall(call["name"], json.dumps(call["arguments"], ensure_ascii=False))
                for call in row.get("tool_calls", ())
            ),
        )
        for row in rows
    ]


@pytest.fixture(scope="module")
def prompts(models_dir):
    return json.loads((models_dir / "chat_templates" / "golden.json").read_text())


@pytest.mark.parametrize("index", range(5))
def test_text_prompts(index, prompts):
    case = prompts["text"][index]
    assert template("ernie45").render(messages(case["messages"]), **case["kwargs"]) == case["expected"]


@pytest.mark.parametrize("index", range(4))
def test_thinking_prompts(index, prompts):
    case = prompts["thinking_derived"][index]
    rendered = template("thinking").render(messages(case["messages"]), case["tools"] or ())
    assert rendered == case["expected"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_generation_prompt_is_the_default(name):
    import jinja2

    source = jinja2.Environment().from_string(builtin_source(name))
    rows = [{"role": "user", "content": "x"}]
    assert source.render(messages=rows) == source.render(messages=rows, add_generation_prompt=True)
    assert source.render(messages=rows) != source.render(messages=rows, add_generation_prompt=False)


@pytest.mark.parametrize("name", TEMPLATES)
def test_white_space_control_of_the_renderer_does_not_matter(name):
    import jinja2

    rows = [
        {"role": "system", "content": " s"},
        {"role": "user", "content": "\nu "},
        {"role": "assistant", "content": "a\n"},
    ]
    texts = {
        jinja2.Environment(trim_blocks=trim, lstrip_blocks=strip)
        .from_string(builtin_source(name))
        .render(messages=rows)
        for trim in (False, True)
        for strip in (False, True)
    }
    assert len(texts) == 1


@pytest.mark.parametrize("name", TEMPLATES)
def test_pieces_join_to_the_prompt_and_mark_what_the_model_writes(name):
    rows = [Message("user", "q"), Message("assistant", "a1"), Message("user", "q2"), Message("assistant", "a2")]
    segments = template(name).segments(rows)
    assert "".join(s.text for s in segments) == template(name).render(rows, add_generation_prompt=False)
    written = "".join(s.text for s in segments if s.generated)
    assert written.index("a1") < written.index("a2")
    assert written.count(TEMPLATES[name].turn_end) == 2
    assert "q" not in written


def test_reasoning_before_the_last_question_is_left_out_of_prompts_only():
    rows = [Message("user", "q"), Message("assistant", "a", "why"), Message("user", "q2")]
    assert "why" not in template("thinking").render(rows)
    assert "why" in template("thinking").render(rows, add_generation_prompt=False)


def test_what_the_text_template_cannot_say_is_refused():
    with pytest.raises(RowError, match="tools"):
        template("ernie45").render([Message("user", "q")], [{"name": "f"}])
    with pytest.raises(RowError, match="not tool"):
        template("ernie45").render([Message("user", "q"), Message("tool", "3")])


def test_the_directory_decides_when_nobody_chose(tmp_path):
    assert choose_template("", tmp_path).source == builtin_source("ernie45")
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ old }}", "extra": ["<|im_start|>"]}')
    assert (choose_template("", tmp_path).source, choose_template("", tmp_path).stop) == ("{{ old }}", "</s>")
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0]['content'] }}<|im_start|>")
    own = choose_template("", tmp_path)
    assert (own.source, own.stop) == ("{{ messages[0]['content'] }}<|im_start|>", "<|im_end|>")
    assert choose_template("ernie45", tmp_path).source == builtin_source("ernie45")


def test_only_our_own_text_is_rendered_in_this_process(tmp_path):
    ours = builtin_source("thinking")
    (tmp_path / "chat_template.jinja").write_text(ours, encoding="utf-8")
    assert [choose_template(name, tmp_path).trusted for name in ("", "ernie45")] == [True, True]
    (tmp_path / "chat_template.jinja").write_text(ours + " ", encoding="utf-8")
    changed = choose_template("", tmp_path)
    assert (changed.trusted, changed.file) == (False, str(tmp_path))


def test_a_file_can_be_chosen_and_a_wrong_name_is_refused(tmp_path):
    (tmp_path / "mine.jinja").write_text("x")
    assert choose_template(str(tmp_path / "mine.jinja"), tmp_path).source == "x"
    with pytest.raises(ConfigError, match="did you mean thinking"):
        choose_template("thinkin", tmp_path)
