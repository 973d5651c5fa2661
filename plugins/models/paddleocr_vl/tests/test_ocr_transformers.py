"""With transformers itself: it loads what ``ernie export`` writes of PaddleOCR-VL, and gives our logits of prompts with images.

Runs where ``ERNIE_HF_PYTHON`` names an interpreter with torch and transformers."""

import json
import os
import subprocess

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45_vl.seeing import END, PLACEHOLDER, START
from erniecore_generation.media import asked, media_of
from erniecore_model_init.new_model import init_model
from erniecore_text.training import train
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
from transformers import AutoModelForImageTextToText
model, told = AutoModelForImageTextToText.from_pretrained(sys.argv[1], dtype=torch.float32, output_loading_info=True)
assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), told
given = {name: torch.tensor(value) for name, value in np.load(sys.argv[2] + "/given.npz").items()}
with torch.no_grad():
    logits = model.eval()(**given).logits
np.save(sys.argv[2] + "/logits.npy", logits.float().numpy())
"""


def test_an_exported_directory_is_loaded_and_gives_our_logits(tmp_path):
    (tmp_path / "tok").mkdir()
    made = train([f"OCR: {i} User: Assistant:" for i in range(60)], 320)
    made.save(tmp_path / "tok")
    ids = {token: made.vocab_size + i for i, token in enumerate((PLACEHOLDER, START, END))}
    (tmp_path / "tok" / "added_tokens.json").write_text(json.dumps(ids))
    keys = {"image_token_id": PLACEHOLDER, "vision_start_token_id": START, "vision_end_token_id": END}
    size = ",".join(["initializer_range=0.1", *(f"{key}={ids[token]}" for key, token in keys.items())])
    init_model("paddleocr-vl", f"tiny,{size}", tmp_path / "tok", tmp_path / "model", seed_value=3)
    noise = np.random.default_rng(0)
    for name, shape in (("a", (56, 84)), ("b", (84, 140))):
        Image.fromarray(noise.integers(0, 255, (*shape, 3), np.uint8)).save(tmp_path / f"{name}.png")
    erniecore.export(str(tmp_path / "model"), str(tmp_path / "out"), to="hf")
    model, tokenizer = erniecore.load_model(tmp_path / "out"), erniecore.load_tokenizer(tmp_path / "out")
    messages = [asked("<image>Which of <image>?", [tmp_path / "a.png", tmp_path / "b.png"])]
    segments = tokenizer.chat_template.segments(messages, add_generation_prompt=True)
    prompt = [i for part in tokenizer.encode_segments(segments) for i in part]
    positions, inputs = media_of(tokenizer.chat_template, messages, prompt).part(0, len(prompt))
    pixels = inputs["pixel_values"]
    given = {"input_ids": np.array([prompt]), "image_grid_thw": inputs["image_grid_thw"]}
    kinds = inputs["mm_token_type_ids"]
    np.savez(
        tmp_path / "given.npz", **given, mm_token_type_ids=kinds, pixel_values=pixels.reshape(len(pixels), 3, 14, 14)
    )
    command = [os.environ["ERNIE_HF_PYTHON"], "-c", READER, str(tmp_path / "out"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    tensors = {"position_ids": positions[None], **inputs}
    with paddle.no_grad():
        ours = model(paddle.to_tensor(given["input_ids"]), **{n: paddle.to_tensor(v) for n, v in tensors.items()})
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), ours.numpy(), atol=3e-5, rtol=0)
