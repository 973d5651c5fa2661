"""With transformers itself: it loads what ``ernie export --to hf-nested`` writes, and gives our pixels of images and our
logits of prompts with them.

Runs where ``ERNIE_HF_PYTHON`` names an interpreter with torch and transformers."""

import json
import os
import subprocess

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_generation.media import asked, media_of
from PIL import Image

import erniecore

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("ERNIE_HF_PYTHON"), reason="$ERNIE_HF_PYTHON names no interpreter with transformers"
    ),
]
READER = """
import sys, numpy as np, torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer
processor, tokenizer = (kind.from_pretrained(sys.argv[1]) for kind in (AutoImageProcessor, AutoTokenizer))
assert "Ernie4_5_VLMoe" in type(processor).__name__, processor
assert tokenizer.image_token == "<|IMAGE_PLACEHOLDER|>", tokenizer
images = [Image.open(f"{sys.argv[2]}/{name}.png") for name in "ab"]
np.savez(sys.argv[2] + "/pixels.npz", **processor(images, return_tensors="np"))
model, told = AutoModelForImageTextToText.from_pretrained(sys.argv[1], dtype=torch.float32, output_loading_info=True)
assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), told
given = {name: torch.tensor(value) for name, value in np.load(sys.argv[2] + "/given.npz").items()}
with torch.no_grad():
    logits = model.eval()(**given).logits
np.save(sys.argv[2] + "/logits.npy", logits.float().numpy())
"""


def test_a_nested_export_is_loaded_and_gives_our_logits(home, tmp_path):
    noise = np.random.default_rng(0)
    for name, shape in (("a", (56, 84)), ("b", (84, 140))):
        Image.fromarray(noise.integers(0, 255, (*shape, 3), np.uint8)).save(tmp_path / f"{name}.png")
    erniecore.export(str(home / "base"), str(tmp_path / "out"), to="hf-nested")
    assert "text_config" in json.loads((tmp_path / "out" / "config.json").read_text())
    model, tokenizer = erniecore.load_model(tmp_path / "out"), erniecore.load_tokenizer(tmp_path / "out")
    messages = [asked("<image>Which of <image>?", [tmp_path / "a.png", tmp_path / "b.png"])]
    segments = tokenizer.chat_template.segments(messages, add_generation_prompt=True)
    prompt = [i for part in tokenizer.encode_segments(segments) for i in part]
    positions, seen = media_of(tokenizer.chat_template, messages, prompt).part(0, len(prompt))
    assert {"pixel_values", "image_grid_thw", "moe_mm_token_type_ids"} <= seen.keys()
    np.savez(tmp_path / "given.npz", input_ids=np.array([prompt]), **seen)
    command = [os.environ["ERNIE_HF_PYTHON"], "-c", READER, str(tmp_path / "out"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    pixels = np.load(tmp_path / "pixels.npz")  # of its own image processor
    for name in ("pixel_values", "image_grid_thw"):
        np.testing.assert_array_equal(pixels[name], seen[name])
    tensors = {"position_ids": positions[None], **seen}
    with paddle.no_grad():
        ours = model(paddle.to_tensor(np.array([prompt])), **{n: paddle.to_tensor(v) for n, v in tensors.items()})
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), ours.numpy(), atol=3e-5, rtol=0)
