"""Rows with images become prompts of the published form; training on them, and the directory that a run leaves."""

import json
import pickle
from dataclasses import replace

import jinja2
import numpy as np
import pytest
from erniecore_ernie45.templating import builtin_source
from erniecore_ernie45_vl.seeing import END, PLACEHOLDER, START
from erniecore_paddleocr_vl.prompts import TASKS
from erniecore_paddleocr_vl.templating import TEMPLATES
from erniecore_rl import rollouts
from safetensors.numpy import load_file

import erniecore
from erniecore.api.data import Media, Message
from erniecore.cli.app import main

PROCESSOR_FILES = ("config.json", "preprocessor_config.json", "tokenizer_config.json")


def settings(home, out, *more):
    return [
        f"model.path={home / 'base'}",
        "method=sft",
        f"data.train={home / 'rows.jsonl'}",
        "data.max_seq_len=96",
        "train.batch_size=4",
        "train.accumulation=1",
        "log.report=false",
        f"run.out={out}",
        *more,
    ]


def test_prompts_are_those_of_the_published_template(home):
    tokenizer = erniecore.load_tokenizer(home / "base")
    media = (Media(str(home / "img" / "1.png"), str(home), "$.images[0]"),)
    asked = Message("user", "Read <image>this", media=media)
    turns = [Message("system", "Be exact."), asked, Message("assistant", "x"), Message("user", "Again")]
    found = tokenizer.chat_template.render(turns)
    image = START + PLACEHOLDER * found.count(PLACEHOLDER) + END
    begin = "<|begin_of_sentence|>Be exact.\nUser: "
    assert found == f"{begin}{image}Read this\nAssistant: x</s>User: Again\nAssistant: "
    assert found.count(PLACEHOLDER) > 1
    parts = [{"type": "text", "text": "Read "}, {"type": "image"}, {"type": "text", "text": "this"}]
    plain = [
        {"role": "system", "content": [{"type": "text", "text": "Be exact."}]},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": [{"type": "text", "text": "x"}]},
        {"role": "user", "content": "Again"},
    ]
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    rendered = environment.from_string(builtin_source("paddleocr-vl", TEMPLATES)).render(messages=plain)
    assert rendered == found.replace(image, START + PLACEHOLDER + END)
    alone = tokenizer.chat_template.render([Message("user", "<image>", media=media)], add_generation_prompt=False)
    assert alone == f"<|begin_of_sentence|>User: {image}{TASKS['ocr']}\n"


def test_the_task_asks_about_an_image_alone_also_in_other_processes(home):
    from pathlib import Path

    from erniecore_paddleocr_vl.config import OcrConfig
    from erniecore_paddleocr_vl.plugin import plugin

    config = OcrConfig(path=str(home / "base"), task="table", image_max_pixels=784)
    tokenizer = plugin.ernie_build_tokenizer(config=config, directory=Path(home / "base"))
    copy = pickle.loads(pickle.dumps(tokenizer))
    asked = [Message("user", "<image>", media=(Media("img/1.png", str(home), "$"),))]
    text = copy.chat_template.render(asked)
    assert text == tokenizer.chat_template.render(asked)
    assert text.endswith(f"{START}{PLACEHOLDER}{END}Table Recognition:\nAssistant: ")
    assert copy.sizing == tokenizer.sizing


def losses(out):
    lines = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if line["event"] == "step"}


@pytest.mark.parametrize("adapter", ["", "lora"])
def test_it_learns_from_images_and_the_result_reloads_equal(adapter, home, tmp_path):
    out = tmp_path / "run"
    words = ["train.max_steps=14", "train.learning_rate=0.01", "train.warmup_ratio=0"]
    words += [f"adapter={adapter}", "adapter.targets=all-linear,vision_model.*,projector.*"] if adapter else []
    erniecore.run(None, settings(home, out, *words), console="none")
    found = losses(out)
    assert np.mean([found[i] for i in (12, 13, 14)]) < np.mean([found[i] for i in (1, 2, 3)]) - 0.3
    merged = out / "model"
    if adapter:
        merged = tmp_path / "merged"
        assert main(["merge", str(out / "adapter"), "--out", str(merged)]) == 0
    again = tmp_path / "again"
    assert main(["export", str(merged), "--to", "hf", "--out", str(again)]) == 0
    one, other = load_file(merged / "model.safetensors"), load_file(again / "model.safetensors")
    assert {name: array.tobytes() for name, array in one.items()} == {n: array.tobytes() for n, array in other.items()}
    assert one["visual.vision_model.embeddings.patch_embedding.weight"].shape == (64, 3, 14, 14)
    before = load_file(home / "base" / "model.safetensors")
    assert before.keys() == one.keys()
    changed = {name for name in one if one[name].tobytes() != before[name].tobytes()}
    assert {"mlp_AR.linear_1.weight", "visual.vision_model.encoder.layers.0.self_attn.q_proj.weight"} <= changed
    assert "model.layers.0.self_attn.q_proj.weight" in changed


def test_what_a_processor_of_other_libraries_reads_is_beside_the_weights(home):
    files = {name: json.loads((home / "base" / name).read_text()) for name in PROCESSOR_FILES}
    config, processor, tokenizer = files.values()
    assert (config["model_type"], config["architectures"]) == ("paddleocr_vl", ["PaddleOCRVLForConditionalGeneration"])
    assert (processor["image_processor_type"], processor["patch_size"], processor["merge_size"]) == (
        "PaddleOCRVLImageProcessor",
        14,
        2,
    )
    assert (processor["min_pixels"], processor["max_pixels"]) == (784, 50176)
    assert tokenizer["extra_special_tokens"] == {"image_token": PLACEHOLDER}
    assert tokenizer["processor_class"] == "PaddleOCRVLProcessor"


@pytest.mark.parametrize("method", ["grpo", "rloo"])
def test_learner_and_sampler_see_the_same_images(home, tmp_path, monkeypatch, method):
    """The log-probabilities of both, of code that has nothing in common but the model, agree; with other images they do not."""
    words = ["rewards={length-penalty: {free: 1, limit: 8}}", "method.max_new_tokens=8", "method.group_size=4"]
    words += [f"method={method}", "train.accumulation=1", "train.max_steps=2"]

    def gaps(name):
        erniecore.run(None, settings(home, tmp_path / name, *words), console="none")
        lines = [json.loads(line) for line in (tmp_path / name / "events.jsonl").read_text().splitlines()]
        return [line["sampling_gap"] for line in lines if line["event"] == "step"]

    right = max(gaps("right"))
    assert right < 1e-5
    made = rollouts.prompt_media

    def inverted(*given):
        found = made(*given)
        spans = [replace(s, inputs={n: -v if n == "pixel_values" else v for n, v in s.inputs.items()})
                 for s in (found.spans if found else ())]  # fmt: skip
        return found and replace(found, spans=tuple(spans))

    monkeypatch.setattr(rollouts, "prompt_media", inverted)
    assert min(gaps("wrong")) > 10 * right
