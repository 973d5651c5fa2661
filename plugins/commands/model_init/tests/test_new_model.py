"""New model directories: sizes, seeds, and what is refused."""

import pytest
from erniecore_model_init.new_model import init_model, parse_size
from erniecore_text import JinjaChatTemplate
from erniecore_text.training import train

from erniecore.api import ConfigError, UsageError
from erniecore.api.building import model_plugin
from erniecore.api.data import Message


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    train(["the quick brown fox jumps over the lazy dog " * 20, "Hello there! 123"], 320).save(directory)
    return directory


def test_the_seed_decides_the_weights(tmp_path, tokenizer):
    size = "num_hidden_layers=1,hidden_size=16"
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        init_model("ernie45", size, tokenizer, tmp_path / name, seed_value=seed)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c


@pytest.mark.parametrize(
    ("model", "size", "template", "prompt"),
    [
        ("ernie45", "num_hidden_layers=1,hidden_size=16", "", "User: a\nAssistant: "),
        ("ernie45", "num_hidden_layers=1,hidden_size=16", "thinking", "<|im_start|>assistant\n<think>\n"),
        ("ernie45-vl", "num_hidden_layers=2,hidden_size=32", "", "\nAssistant: <think>\n\n</think>\n\n"),
        ("ernie45-vl", "num_hidden_layers=2,hidden_size=32", "ernie45-vl-thinking", "\nAssistant: \n<think>\n"),
    ],
)
def test_a_new_model_has_its_own_template_or_the_one_that_is_named(tmp_path, tokenizer, model, size, template, prompt):
    made = init_model(model, size, tokenizer, tmp_path / "m", template=template)
    source = (made.path / "chat_template.jinja").read_text(encoding="utf-8")
    assert JinjaChatTemplate(source).render([Message("user", "a")]).endswith(prompt)


@pytest.mark.parametrize(
    ("model", "size", "template"),
    [
        ("ernie45", "0.3b", ""),
        ("ernie45-moe", "21b-a3b", ""),
        ("ernie45-moe", "21b-a3b-thinking", "thinking"),
        ("ernie45-vl", "28b-a3b", "ernie45-vl"),
        ("ernie45-vl", "424b-a47b", "ernie45-vl"),
        ("ernie45-vl", "28b-a3b-thinking", "ernie45-vl-thinking"),
    ],
)
def test_published_sizes_name_the_published_template(model, size, template):
    assert parse_size(model_plugin(model), size)[2] == template


def test_an_unknown_template_is_refused_before_anything_is_built(tmp_path, tokenizer):
    with pytest.raises(ConfigError, match="did you mean thinking"):
        init_model("ernie45", "tiny", tokenizer, tmp_path / "m", template="thinkin")
    assert not (tmp_path / "m").exists()


def test_sizes_start_from_a_recipe():
    plugin = model_plugin("ernie45")
    tiny, *_ = parse_size(plugin, "tiny")
    changed, keys, _ = parse_size(plugin, "hidden_size=256, rope_theta=10000,tie_word_embeddings=false")
    assert changed == {**tiny, "hidden_size": 256, "rope_theta": 10000, "tie_word_embeddings": False}
    assert keys == {"hidden_size", "rope_theta", "tie_word_embeddings"}
    assert parse_size(plugin, "0.3b,num_hidden_layers=2")[0]["hidden_size"] == 1024


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("tinny", "no size 'tinny'.*did you mean tiny"),
        ("hiden_size=3", "no 'hiden_size'.*did you mean hidden_size"),
        ("hidden_size=large", "hidden_size must be a whole number"),
        ("hidden_size=true", "hidden_size must be a whole number"),
        ("tie_word_embeddings=1", "must be true or false"),
        ("tiny,hidden_size", "a size is a name or key=value"),
        ("hidden_size=", "a size is a name or key=value"),
    ],
)
def test_a_wrong_size_is_refused_with_a_hint(size, message):
    with pytest.raises(UsageError, match=message):
        parse_size(model_plugin("ernie45"), size)
