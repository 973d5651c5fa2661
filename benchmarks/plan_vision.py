"""``python -m benchmarks.plan_vision [NAMES…]``: planned against measured peak memory of runs on rows with images, on the CPU.

As ``plan_memory``, for models that see: every packed row has about as many tokens and patches as the settings allow, which is
what the plan assumes. Prints one JSON line per run and a table.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from benchmarks.plan_memory import ernie, table

#: a row of the data: an image of 224 x 224 pixels, 256 patches, 64 tokens; with its answer a few less than ``TOKENS``
SIDE, PATCHES = 224, 256
TOKENS = {"paddleocr-vl": 134, "ernie45-vl": 150}
STEPS = 6
WIDE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "max_position_embeddings": 8192,
}
OCR_TOWER = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "image_size": 224}
SECTIONS = {"rope_scaling": {"mrope_section": [8, 12, 12], "rope_type": "default", "type": "default"}}
VL_TOWER = {"embed_dim": 256, "hidden_size": 256, "depth": 6, "num_heads": 4}
VL: dict[str, Any] = {
    "pixel_hidden_size": 256,
    "moe_num_experts": [16, 16],
    "moe_k": 4,
    "moe_intermediate_size": [128, 64],
}
VL |= {"moe_layer_start_index": [1, 1], "moe_layer_end_index": [3, 3]}
#: name -> (plugin, package, recipe, changes of its architecture, of its tower)
MODELS: dict[str, tuple[str, str, str, dict[str, Any], dict[str, Any]]] = {
    "ocr-tiny": ("paddleocr-vl", "erniecore_paddleocr_vl", "tiny", {"vocab_size": 512}, {}),
    "ocr-mid": (
        *("paddleocr-vl", "erniecore_paddleocr_vl", "tiny"),
        *({**WIDE, "vocab_size": 512, "head_dim": 64, **SECTIONS}, OCR_TOWER),
    ),
    "ocr-0.9b": ("paddleocr-vl", "erniecore_paddleocr_vl", "0.9b", {}, {}),
    "vl-tiny": ("ernie45-vl", "erniecore_ernie45_vl", "tiny", {"vocab_size": 512}, {}),
    "vl-mid": ("ernie45-vl", "erniecore_ernie45_vl", "tiny", {**WIDE, **VL, "vocab_size": 512}, VL_TOWER),
}
ALL = "model.train=[text,vision,resampler,vision_experts]"
#: name -> (model, images of a packed row, words)
CASES: dict[str, tuple[str, int, str]] = {
    "ocr-tiny, 4 images": ("ocr-tiny", 4, ""),
    "ocr-mid, 4 images": ("ocr-mid", 4, ""),
    "ocr-mid, 4 images x 2": ("ocr-mid", 4, "train.batch_size=2"),
    "ocr-mid, 8 images, full": ("ocr-mid", 8, "train.recompute=full"),
    "ocr-mid, 4 images, lora": ("ocr-mid", 4, "adapter=lora"),
    "vl-tiny, 4 images, text": ("vl-tiny", 4, ""),
    "vl-tiny, 4 images, all": ("vl-tiny", 4, ALL),
    "vl-mid, 4 images, text": ("vl-mid", 4, ""),
    "vl-mid, 4 images, all": ("vl-mid", 4, ALL),
    "vl-mid, 8 images, all, full": ("vl-mid", 8, f"{ALL} train.recompute=full"),
    "vl-mid, 4 images, resampler": ("vl-mid", 4, "model.train=[text,resampler]"),
}
#: of the public size, by name alone: minutes, 5 GiB with LoRA and 16 GiB in full
PUBLIC: dict[str, tuple[str, int, str]] = {
    "ocr-0.9b, 1 image, lora": ("ocr-0.9b", 1, "adapter=lora"),
    "ocr-0.9b, 4 images, lora": ("ocr-0.9b", 4, "adapter=lora"),
    "ocr-0.9b, 1 image, full": ("ocr-0.9b", 1, "train.recompute=full"),
    "ocr-0.9b, 4 images, full": ("ocr-0.9b", 4, "train.recompute=full"),
}
MARKERS = {
    "paddleocr-vl": ("image_token_id", "vision_start_token_id", "vision_end_token_id", "video_token_id"),
    "ernie45-vl": (
        "im_patch_id", "image_start_token_id", "image_end_token_id", "video_start_token_id", "video_end_token_id"),
}  # fmt: skip
TOKEN_NAMES = {
    "paddleocr-vl": ("<|IMAGE_PLACEHOLDER|>", "<|IMAGE_START|>", "<|IMAGE_END|>", "<|video_pad|>"),
    "ernie45-vl": (
        "<|IMAGE_PLACEHOLDER|>", "<|IMAGE_START|>", "<|IMAGE_END|>", "<|VIDEO_START|>", "<|VIDEO_END|>"),
}  # fmt: skip


def make(home: Path) -> None:
    """Rows with images, and a tokenizer for each model."""
    draw = random.Random(1)
    Image.effect_noise((SIDE, SIDE), 80).convert("RGB").save(home / "page.png")
    texts = [" ".join(str(draw.randrange(1000)) for _ in range(40)) for _ in range(400)]
    (home / "texts.jsonl").write_text("".join(json.dumps({"instruction": "go", "output": t}) + "\n" for t in texts))
    ernie("tokenizer", "train", "texts.jsonl", "--vocab-size", "296", "--out", "tok", cwd=home)
    with (home / "rows.jsonl").open("w") as file:
        for text in texts:
            answer = " ".join(text.split()[:12])
            turns = [{"role": "user", "content": "<image>go"}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": turns, "images": ["page.png"]}) + "\n")
    for name, tokens in TOKEN_NAMES.items():
        ernie("tokenizer", "train", "texts.jsonl", "--vocab-size", "296", "--out", f"tok-{name}", cwd=home)
        (home / f"tok-{name}" / "added_tokens.json").write_text(json.dumps({t: 296 + i for i, t in enumerate(tokens)}))


def settings(home: Path, model: str) -> Path:
    """A file of settings with the architecture of ``model``."""
    plugin, package, size, changes, tower = MODELS[model]
    recipe = resources.files(package) / "recipes" / f"{size}.yaml"
    section: Any = yaml.safe_load(recipe.read_text())["model"]
    architecture = {**section["architecture"], **changes}
    architecture |= {key: 296 + i for i, key in enumerate(MARKERS[plugin])}
    architecture["vision_config"] = {**architecture["vision_config"], **tower}
    wanted = {
        "name": plugin,
        "architecture": architecture,
        "tokenizer": str(home / f"tok-{plugin}"),
        "image_min_pixels": 784,
        "image_max_pixels": SIDE**2,
    }
    file = home / f"{model}.yaml"
    file.write_text(json.dumps({"model": wanted}))
    return file


def measure(home: Path, name: str) -> dict[str, Any]:
    """One run: predicted and measured bytes."""
    model, images, words = {**CASES, **PUBLIC}[name]
    common = [settings(home, model).name, "method=sft", "data.train=rows.jsonl", *words.split()]
    common += [
        f"data.max_seq_len={images * TOKENS[MODELS[model][0]]}",
        f"data.max_patches={images * PATCHES}",
        "train.accumulation=1",
    ]
    estimate = json.loads(ernie("plan", *common, "--json", cwd=home))["estimate"]
    more = [
        f"run.out={model}-{len(words)}-{images}",
        f"train.max_steps={STEPS}",
        "log.report=false",
    ]
    more += ["checkpoint.export=false", "checkpoint.final=false"]
    events = [json.loads(line) for line in ernie("run", *common, *more, "--json", cwd=home).splitlines()]
    end, steps = events[-1], [event for event in events if event["event"] == "step"]
    return {
        "case": name,
        "planned": estimate["peak_memory"],
        "measured": end["tensor_memory"],
        "error": estimate["peak_memory"] / end["tensor_memory"] - 1,
        "process": end["peak_memory"],
        "process_error": estimate["process_memory"] / end["peak_memory"] - 1,
        "activations": estimate["activations"],
        "tokens": [event["tokens"] for event in steps],
        "patches": images * PATCHES,
        "seconds": [event["seconds"] for event in steps],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="some of the cases (default: all)")
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        make(home)
        for name in args.names or CASES:
            results.append(measure(home, name))
            print(json.dumps(results[-1]), flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
