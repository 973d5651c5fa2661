"""The chat templates of the vision-language models against the golden prompt strings, and with the text around images."""

import json
import re

import jinja2
import pytest
from erniecore_ernie45.templating import builtin_source, choose_template
from erniecore_ernie45_vl.prompts import segments
from erniecore_ernie45_vl.templating import TEMPLATES

from erniecore.api.data import Message

NAMES = [name for name in TEMPLATES if "vl" in name]
SYSTEM = "You are a multimodal AI assistant called ERNIE developed by Baidu based on the PaddlePaddle framework.\n"


def rendered(name, messages, **options):
    """As transformers renders an exported directory."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(builtin_source(name, TEMPLATES)).render(messages=messages, **options)


@pytest.fixture(scope="module")
def prompts(models_dir):
    return json.loads((models_dir / "chat_templates" / "golden.json").read_text(encoding="utf-8"))["vl"]


@pytest.mark.parametrize("index", range(4))
def test_prompts_are_the_golden_ones(index, prompts):
    case = prompts[index]
    assert rendered("ernie45-vl", case["messages"], **case["kwargs"]) == case["expected"]


@pytest.mark.parametrize("index", range(4))
def test_images_from_python_stand_in_the_same_text(index, prompts):
    case, kinds = prompts[index], {"image": [], "video": []}
    for message in case["messages"]:
        for part in message["content"] if isinstance(message["content"], list) else ():
            kinds.get(part["type"], []).append(1)
    think = case["kwargs"].get("enable_thinking", False)
    prompt = case["kwargs"].get("add_generation_prompt", True)
    found = segments(case["messages"], kinds, think=think, add_generation_prompt=prompt)
    assert "".join(part.text for part in found) == case["expected"]


def test_the_thinking_model_opens_reasoning_and_has_a_system_text(prompts):
    image = re.search(r"\w+ 1:<\|IMAGE_START\|>.*<\|IMAGE_END\|>", prompts[0]["expected"])[0]
    ask = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}]
    question = f"User:  {image}What?"
    begin = f"<|begin_of_sentence|>{SYSTEM}{question}\nAssistant: \n<think>\n"
    assert rendered("ernie45-vl-thinking", ask) == begin
    closed = begin + "\n</think>\n\n"
    assert rendered("ernie45-vl-thinking", ask, enable_thinking=False) == closed
    assert rendered("ernie45-vl-thinking", ask, options={"thinking_mode": "close"}) == closed
    own = rendered("ernie45-vl-thinking", [{"role": "system", "content": "Be brief."}, *ask])
    assert own == f"<|begin_of_sentence|>Be brief.\n{question}\nAssistant: \n<think>\n"


@pytest.mark.parametrize("name", NAMES)
def test_white_space_control_of_the_renderer_does_not_matter(name):
    rows = [{"role": "user", "content": "\nu "}, {"role": "assistant", "content": "a\n", "reasoning_content": " r"}]
    texts = {
        jinja2.Environment(trim_blocks=trim, lstrip_blocks=strip)
        .from_string(builtin_source(name, TEMPLATES))
        .render(messages=rows)
        for trim in (False, True)
        for strip in (False, True)
    }
    assert len(texts) == 1


@pytest.mark.parametrize("name", NAMES)
def test_what_a_template_cannot_say_is_refused(name):
    for messages, options in (
        ([{"role": "tool", "content": "3"}], {}),
        ([{"role": "user", "content": [{"type": "audio"}]}], {}),
        ([{"role": "user", "content": "q"}], {"tools": [{"name": "f"}]}),
    ):
        with pytest.raises(Exception, match=r"knows|no place"):
            rendered(name, messages, raise_exception=_raise, **options)


def _raise(message):
    raise ValueError(message)


def test_a_directory_without_a_template_has_the_published_one(tmp_path):
    template = choose_template("", tmp_path, TEMPLATES)
    assert template.source == builtin_source("ernie45-vl", TEMPLATES)
    assert template.render([Message("user", "q")]).endswith("\nAssistant: <think>\n\n</think>\n\n")
    assert template.render([Message("user", "q")], thinking=True).endswith("\nAssistant: <think>")
