"""Files of a model directory that are no JSON, no files, or say something impossible: an error of the file, never a bug."""

import pytest
from hostile_files import JSON_TEXTS, SPECIAL, WRONG, assert_refused, damage, edit, shown, special, with_header

from erniecore.engine.models.bundles import open_tokenizer
from erniecore.errors import EnvironmentFault, Exit

pytestmark = pytest.mark.area("config.json")
OF_THE_FILE = {Exit.USAGE, Exit.ENVIRONMENT, Exit.CHECKPOINT, Exit.DATA}
#: JSON files of a model directory; those that may be missing may also be ignored where they are directories
FILES = ["config.json", "model.safetensors.index.json", "tokenizer_config.json", "special_tokens_map.json",
         "generation_config.json", "added_tokens.json"]  # fmt: skip
NEEDED = ["config.json", "model.safetensors"]
OF_THE_TOKENIZER = ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]


def test_the_model_works_before_it_is_damaged(answers):
    code, out, err = answers()
    assert code == 0, (out, err)


@pytest.mark.parametrize("text", JSON_TEXTS)
@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_no_json_object_is_an_error_of_that_file(loads, model, file, text):
    (model / file).write_bytes(JSON_TEXTS[text])
    outcome = loads()
    if file in OF_THE_TOKENIZER:  # a model may have none, which is said
        assert_refused(outcome, {0})
        with pytest.raises(EnvironmentFault) as error:
            open_tokenizer(model)
        assert file in error.value.where or str(model) in error.value.where
    else:
        assert_refused(outcome, OF_THE_FILE)
        assert file in outcome[2]


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("file", [*FILES, "tokenizer.model", "model.safetensors", "chat_template.jinja"])
def test_what_is_no_file_is_never_read(loads, model, file, kind):
    special(model / file, kind)
    assert_refused(loads(), OF_THE_FILE if file in NEEDED else {0, *OF_THE_FILE})


SIZES = ["num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "num_attention_heads",
         "num_key_value_heads", "head_dim"]  # fmt: skip


@pytest.mark.parametrize(
    "size", [10**6, 10**12, 10**18, 10**399, 0, -1], ids=lambda n: f"{float(n):.0e}" if n < 1e300 else "1e399"
)
@pytest.mark.parametrize("key", SIZES)
def test_impossible_sizes_are_refused_before_anything_is_built(loads, model, key, size):
    edit(model / "config.json", **{key: size})
    assert_refused(loads(), {Exit.CHECKPOINT, Exit.MEMORY})


KEYS = [*SIZES, "model_type", "architectures", "rms_norm_eps", "rope_theta", "rope_parameters", "tie_word_embeddings",
        "use_bias", "hidden_act", "torch_dtype", "quantization_config", "max_position_embeddings"]  # fmt: skip


@pytest.mark.parametrize("value", WRONG, ids=shown)
@pytest.mark.parametrize("key", KEYS)
def test_values_of_another_type_are_errors_of_config_json(loads, model, key, value):
    edit(model / "config.json", **{key: value})
    assert_refused(loads(), {0, *OF_THE_FILE})


@pytest.mark.parametrize(
    ("file", "key"),
    [
        *[("tokenizer_config.json", key) for key in ("bos_token", "additional_special_tokens", "added_tokens_decoder",
                                                      "chat_template", "model_max_length")],
        *[("special_tokens_map.json", key) for key in ("eos_token", "additional_special_tokens")],
        *[("generation_config.json", key) for key in ("eos_token_id", "temperature")],
        ("added_tokens.json", "<x>"),
        ("model.safetensors.index.json", "weight_map"),
        ("model.safetensors.index.json", "metadata"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", WRONG, ids=shown)
@pytest.mark.area("tokenizer, template")
def test_values_of_another_type_are_errors_of_their_file(loads, model, file, key, value):
    edit(model / file, **{key: value})
    assert_refused(loads(), {0, *OF_THE_FILE})


@pytest.mark.parametrize("key", ["eos_token_id", "temperature", "top_p", "max_new_tokens"])
@pytest.mark.parametrize("value", [-1, "x", ["\x1b[31m"], {"a": 1}], ids=shown)
def test_settings_of_generation_of_another_type_are_errors(answers, model, key, value):
    edit(model / "generation_config.json", **{key: value})
    assert_refused(answers(), {0, *OF_THE_FILE})


TEMPLATES = {
    "not UTF-8": b"{{ '\xff' }}",
    "digits": b"{{ " + b"9" * 5000 + b" }}",
    "parentheses": b"{{ " + b"(" * 20_000 + b"1" + b")" * 20_000 + b" }}",
    "unclosed": b"{% for m in messages %}",
    "a gigabyte": b"{# " + b"x" * (2 << 20) + b" #}",
}


@pytest.mark.area("tokenizer, template")
@pytest.mark.parametrize("text", TEMPLATES)
def test_a_template_that_cannot_be_compiled_is_an_error(answers, model, text):
    (model / "chat_template.jinja").write_bytes(TEMPLATES[text])
    assert_refused(answers("--chat"), OF_THE_FILE)


@pytest.mark.area("tokenizer, template")
@pytest.mark.parametrize("content", [b"", b"x", b"\x00" * 4096])
def test_a_tokenizer_that_is_none_is_an_error(answers, model, content):
    (model / "tokenizer.model").write_bytes(content)
    assert_refused(answers(), OF_THE_FILE)


@pytest.mark.area("weights, index, pickle")
@pytest.mark.parametrize("name", ["\x1b[31mred", "\x1b]0;title\x07", "a\rb", "\x9b2J", "\u202egnp", "n" * 5000])
def test_names_of_tensors_reach_the_terminal_as_text(loads, model, name):
    (model / "erniecore.json").unlink(missing_ok=True)

    def rename(header):
        first = next(key for key in header if key != "__metadata__")
        header[name] = header.pop(first)

    with_header(model, rename)
    assert_refused(loads(), {Exit.CHECKPOINT})


@pytest.mark.area("weights, index, pickle")
@pytest.mark.parametrize(
    "file", ["../other.safetensors", "/etc/passwd", "x" * 5000, "\x1b[31m", "model.safetensors/.."]
)
def test_an_index_names_no_file_outside(loads, model, file):
    (model / "model.safetensors").rename(model / "model-00001-of-00001.safetensors")
    edit(model / "model.safetensors.index.json", weight_map={"model.norm.weight": file})
    assert_refused(loads(), {Exit.CHECKPOINT})


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("kind", ["flip", "cut", "noise"])
@pytest.mark.area("tokenizer, template")
def test_a_damaged_tokenizer(answers, model, kind, seed):
    (model / "erniecore_manifest.json").unlink(missing_ok=True)
    damage(model / "tokenizer.model", kind, seed)
    assert_refused(answers(), {0, *OF_THE_FILE})
