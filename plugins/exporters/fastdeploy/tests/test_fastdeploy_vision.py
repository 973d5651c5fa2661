"""Models that see, for FastDeploy: both layouts of ERNIE 4.5 VL, PaddleOCR-VL as it is, what is refused, and which rule each kind
of damage breaks."""

import json
import shutil

import numpy as np
import pytest
from erniecore_checkpoint.floats import read_tensors, write_tensors
from erniecore_conformance.checks.model import joined_rows
from erniecore_conformance.toys.compute import logits
from erniecore_ernie45_vl.architecture import VlArchitecture
from erniecore_ernie45_vl.examples import example_rows
from erniecore_export.exporting import export_directory
from erniecore_fastdeploy.contract_vision import MARKERS
from erniecore_fastdeploy.paddle_layout import packed_of
from erniecore_generation.media import asked
from erniecore_model_check.rules import check_directory
from erniecore_paddleocr_vl.architecture import OcrArchitecture
from erniecore_quantize.quantize import quantize_directory
from seers import make_seer

import erniecore
from erniecore import kernels
from erniecore.engine.models.bundles import load_bundle
from erniecore.errors import UsageError

PARSE = {"ernie45-vl": VlArchitecture.parse, "paddleocr-vl": OcrArchitecture.parse}
#: vision experts too
WITH_VISION = ["int4=mlp.experts.*,mlp.vision_experts.*"]


@pytest.fixture(scope="module")
def homes(tmp_path_factory):
    """Name -> directory with ``model``, and for FastDeploy ``served``."""
    found = {}
    for name in PARSE:
        found[name] = make_seer(tmp_path_factory.mktemp(name), name)
        export_directory(found[name] / "model", found[name] / "served", "fastdeploy")
    return found


@pytest.fixture(params=list(PARSE))
def plain(request, homes):
    """(name, directory) of each."""
    return request.param, homes[request.param]


@pytest.fixture(scope="module")
def rounded(tmp_path_factory):
    """An ERNIE 4.5 VL in ``wint8`` and ``wint4-8`` as ``codes-…``, and for FastDeploy as ``served-…``."""
    home = make_seer(tmp_path_factory.mktemp("rounded"))
    for name, options in (("wint8", []), ("wint4-8", WITH_VISION)):
        quantize_directory(home / "model", home / f"codes-{name}", name, options)
        export_directory(home / f"codes-{name}", home / f"served-{name}", "fastdeploy")
    return home


def seen(directory, name):
    """Logits of rows with images."""
    bundle = load_bundle(directory).bundle
    ids, media = joined_rows(example_rows(PARSE[name](bundle.architecture)))
    return logits(bundle.model, ids, **media)


def test_a_model_as_it_is_keeps_the_contract_and_its_logits(plain):
    name, home = plain
    assert check_directory(home / "served", "fastdeploy") == []
    np.testing.assert_array_equal(seen(home / "served", name), seen(home / "model", name))
    config = json.loads((home / "served" / "config.json").read_text())
    assert "torch_dtype" in config
    assert (home / "served" / "preprocessor_config.json").is_file()


def test_prompts_with_images_are_those_of_the_model_when_it_is_read_back(plain):
    _, home = plain
    answers = []
    for directory in ("model", "served"):
        tokenizer = erniecore.load_tokenizer(home / directory)
        messages = [asked("What is <image>?", [home / "a.png"])]
        segments = tokenizer.chat_template.segments(messages, add_generation_prompt=True)
        answers.append([i for part in tokenizer.encode_segments(segments) for i in part])
    assert answers[0] == answers[1]


def test_the_template_has_the_marks_that_the_server_looks_for(plain):
    name, home = plain
    source = (home / "served" / "chat_template.jinja").read_text()
    told = json.loads((home / "served" / "tokenizer_config.json").read_text())
    assert told["chat_template"] == source
    for ours, marker in MARKERS.items():
        assert (marker in source) == (name == "ernie45-vl")
        assert ours in (home / "model" / "chat_template.jinja").read_text() or name == "paddleocr-vl"
    parts = [{"type": "image"}, {"type": "text", "text": "What?"}]
    import jinja2

    written = jinja2.Template(source).render(messages=[{"role": "user", "content": parts}])
    expected = "Picture 1:<|IMAGE_START|><|image@placeholder|><|IMAGE_END|>What?"
    if name == "paddleocr-vl":
        expected = "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>What?"
    assert f"User: {expected}" in written


@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("wint8", {"quantization": "wint8"}),
        (
            "wint4-8",
            {
                "quantization": "mix_quant",
                "dense_quant_type": "wint8",
                "moe_quant_type": "wint4",
                "image_moe_quant_type": "wint4",
            },
        ),
    ],
)
def test_a_quantized_model_reads_back_as_its_numbers(rounded, name, section):
    codes, served = rounded / f"codes-{name}", rounded / f"served-{name}"
    assert check_directory(served, "fastdeploy") == []
    config = json.loads((served / "config.json").read_text())
    told = {key: value for key, value in config["quantization_config"].items() if key != "modules_to_not_convert"}
    assert told == {**section, "is_quantized": False}
    before, after = (load_bundle(directory).bundle for directory in (codes, served))
    weights, packed = after.model.state_dict(), packed_of(before)
    assert any("vision_experts" in entry for entry in packed)
    for entry, weight in packed.items():
        assert weight.dequantize().numpy().tobytes() == weights[entry].numpy().tobytes(), entry
    for entry, tensor in before.model.state_dict().items():
        if entry in weights:
            np.testing.assert_array_equal(tensor.numpy(), weights[entry].numpy(), err_msg=entry)
    # kernels round rows of products with quantized weights, and routers then choose other experts
    kernels.use(kernels.REFERENCES, lambda: 1)
    np.testing.assert_allclose(seen(served, "ernie45-vl"), seen(codes, "ernie45-vl"), atol=1e-4, rtol=1e-3)


def test_vision_experts_that_are_not_quantized_beside_others_are_refused(rounded, tmp_path):
    quantize_directory(rounded / "model", tmp_path / "codes", "wint4-8")
    with pytest.raises(UsageError, match="cannot load") as raised:
        export_directory(tmp_path / "codes", tmp_path / "served", "fastdeploy")
    assert "quantizer.int4" in str(raised.value.expected)
    assert ".experts." in str(raised.value.where)


def test_a_quantized_reader_of_documents_is_refused_with_what_to_do(homes, tmp_path):
    quantize_directory(homes["paddleocr-vl"] / "model", tmp_path / "codes", "wint8")
    with pytest.raises(UsageError, match="cannot load") as raised:
        export_directory(tmp_path / "codes", tmp_path / "served", "fastdeploy")
    assert "quantization=wint8" in str(raised.value.expected)


VL_CONFIG = {
    "vl-flat": lambda c: c.update(model_type="ernie4_5_vl_moe"),
    "vl-pairs": lambda c: c.update(moe_num_experts=8),
    "vl-layers": lambda c: c.update(moe_layer_end_index=[2, 1]),
    "vl-biases": lambda c: c.pop("moe_use_aux_free"),
    "vl-tower": lambda c: c["vision_config"].pop("embed_dim"),
    "vl-ids": lambda c: c.update(image_end_token_id=5),
    "vl-names": lambda c: c["vision_config"].update(depth=3),
    "served": lambda c: c.update(architectures=["Ernie4_5_VLForConditionalGeneration"]),
    "rope": lambda c: c.pop("rope_theta"),
}
OCR_CONFIG = {
    "ocr-public": lambda c: c.update(quantization_config={"quantization": "wint8"}),
    "ocr-config": lambda c: c.pop("rope_scaling"),
    "ocr-names": lambda c: c["vision_config"].update(num_hidden_layers=5),
    "head": lambda c: c.update(tie_word_embeddings=True),
}


CONFIGS = {"ernie45-vl": VL_CONFIG, "paddleocr-vl": OCR_CONFIG}


@pytest.mark.parametrize(("name", "rule"), [(name, rule) for name, changes in CONFIGS.items() for rule in changes])
def test_a_broken_key_is_named(homes, tmp_path, name, rule):
    shutil.copytree(homes[name] / "served", tmp_path / "x")
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    CONFIGS[name][rule](config)
    (tmp_path / "x" / "config.json").write_text(json.dumps(config))
    assert rule in {broken.rule for broken in check_directory(tmp_path / "x", "fastdeploy")}


def renamed(name, new):
    return lambda tensors: tensors.update({new: tensors.pop(name)})


GATE = "model.layers.1.mlp.gate.weight_1"
TENSORS = {
    "ernie45-vl": {
        "vl-names": [
            renamed("vision_model.ln.weight", "model.vision_model.ln.weight"),
            lambda tensors: tensors.update({GATE: tensors[GATE].T.copy()}),
            renamed("model.layers.1.mlp.experts.15.up_proj.weight", "model.layers.1.mlp.experts.16.up_proj.weight"),
        ],
        "vl-numbers": [
            lambda t: t.update({"vision_model.ln.weight": t["vision_model.ln.weight"].astype(np.int8)}),
        ],
    },
    "paddleocr-vl": {
        "ocr-names": [
            renamed("mlp_AR.linear_1.weight", "model.projector.linear_1.weight"),
            renamed("lm_head.weight", "head.weight"),
        ],
        "ocr-numbers": [lambda t: t.update({"mlp_AR.pre_norm.bias": t["mlp_AR.pre_norm.bias"].astype(np.int8)})],
    },
}


def test_a_broken_tensor_is_named(plain, tmp_path):
    name, home = plain
    for rule, damages in TENSORS[name].items():
        for number, damage in enumerate(damages):
            place = tmp_path / f"{rule}-{number}"
            shutil.copytree(home / "served", place)
            tensors = {key: np.array(value) for key, value in read_tensors(place / "model.safetensors").items()}
            damage(tensors)
            (place / "model.safetensors").unlink()
            write_tensors(place / "model.safetensors", tensors)
            assert rule in {broken.rule for broken in check_directory(place, "fastdeploy")}, (rule, number)


def test_missing_files_are_named(plain, tmp_path):
    name, home = plain
    short = {"ernie45-vl": "vl", "paddleocr-vl": "ocr"}[name]
    shutil.copytree(home / "served", tmp_path / "x")
    (tmp_path / "x" / "preprocessor_config.json").unlink()
    assert f"{short}-preprocessor" in {broken.rule for broken in check_directory(tmp_path / "x", "fastdeploy")}
    if name == "ernie45-vl":
        shutil.copy(home / "model" / "chat_template.jinja", tmp_path / "x" / "chat_template.jinja")
        assert "vl-template" in {broken.rule for broken in check_directory(tmp_path / "x", "fastdeploy")}
