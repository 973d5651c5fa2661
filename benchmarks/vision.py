"""``python -m benchmarks.vision``: training on images, ours and transformers' own models, on equal weights, images and tokens.

Both sides load one model directory and read the same arrays, in turns A B A B; every run is a process of its own. A step is
forward, backward, clipping and AdamW. The losses of the first step must be equal, which the table says. Needs the
environment ``hf`` (see ``README.md``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.compare import RUNNERS, environment_of
from benchmarks.machine import describe, run_json, wait_until_quiet

#: patches of the images of a batch, one image in each row: 224 x 224 to 448 x 448 pixels and longer ones
GRIDS = ((16, 16), (24, 24), (32, 32), (16, 40))
#: tokens of a row; what its image leaves is text
LENGTH = 384
OCR_TOWER = {
    "model_type": "paddleocr_vl",
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_channels": 3,
    "image_size": 378,
    "patch_size": 14,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "spatial_merge_size": 2,
}
VL_TOWER = {"embed_dim": 384, "hidden_size": 384, "depth": 6, "num_heads": 6}
#: of both models, beside what their tiny sizes say
WIDE: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 384,
    "intermediate_size": 1152,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
}
SIZES: dict[str, dict[str, Any]] = {
    "paddleocr-vl": {
        **WIDE,
        "head_dim": 64,
        "rope_scaling": {"mrope_section": [8, 12, 12], "rope_type": "default", "type": "default"},
        "vision_config": OCR_TOWER,
        **{"image_token_id": 8188, "video_token_id": 8189, "vision_start_token_id": 8190, "vision_end_token_id": 8191},
    },
    "ernie45-vl": {
        **WIDE,
        "freq_allocation": 8,
        "pixel_hidden_size": 384,
        "moe_num_experts": [16, 16],
        "moe_k": 4,
        "moe_intermediate_size": [192, 96],
        "moe_layer_start_index": [1, 1],
        "moe_layer_end_index": [5, 5],
        "vision_config": VL_TOWER,
        **{"im_patch_id": 8186, "image_start_token_id": 8187, "image_end_token_id": 8188},
        **{"video_start_token_id": 8189, "video_end_token_id": 8190, "video_token_id": 8191},
    },
}
CASES = [f"{method}-{model}" for model in SIZES for method in ("sft", "lora")]


def make(home: Path, model: str, batches: int) -> Path:
    """A model directory with random weights that both sides load, and in it ``batches.npz``."""
    from erniecore_ernie45_vl.nesting import nested

    from erniecore.api import building
    from erniecore.api.model_files import random_tensors, save_model_directory

    plugin = building.model_plugin(model)
    tiny: Any = yaml.safe_load(building.recipes(plugin)["tiny"])["model"]["architecture"]
    vision = {**tiny["vision_config"], **SIZES[model]["vision_config"]}
    architecture = {**tiny, **SIZES[model], "vision_config": vision, "initializer_range": 0.05}
    building.open_device()
    bundle, _ = building.build_bundle(plugin, {"architecture": architecture}, None, "float32")
    if model == "ernie45-vl":  # transformers knows the nested form alone
        bundle = replace(bundle, architecture=nested(bundle.architecture))
    tensors = random_tensors(bundle.model, bundle.adapter, 42, "float32")
    target = save_model_directory(bundle, home / model, tensors=tensors)
    np.savez(target / "batches.npz", **rows(bundle.model.vl, batches))
    return target


def rows(arch: Any, batches: int) -> dict[str, Any]:
    """Arrays [batches, …] of rows with one image each, in the middle of random text: ids and labels [rows, S], pixels
    [patches, numbers], kinds of tokens."""
    rng, markers, merge = np.random.default_rng(0), arch.markers, arch.vision.merge
    count = len(GRIDS)
    ids = rng.integers(5, min(vars(markers).values()), (batches, count, LENGTH))
    labels, kinds, around = np.full_like(ids, -100), np.zeros_like(ids), np.zeros_like(ids)
    for row, (height, width) in enumerate(GRIDS):
        stop = 4 + 1 + height * width // merge**2
        ids[:, row, 4], ids[:, row, 5:stop], ids[:, row, stop] = markers.image_start, markers.image, markers.image_end
        kinds[:, row, 5:stop], around[:, row, 4 : stop + 1] = 1, 1
        labels[:, row, stop + 4 :] = ids[:, row, stop + 4 :]
    patches = sum(height * width for height, width in GRIDS)
    pixels = rng.standard_normal((batches, patches, arch.vision.patch_values)).astype(np.float32)
    grids = np.array([[(1, *grid) for grid in GRIDS]] * batches, np.int64)
    names = {"input_ids": ids, "labels": labels, "mm_token_type_ids": kinds, "moe_mm_token_type_ids": around}
    return {**names, "pixel_values": pixels, "image_grid_thw": grids}


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All runs, in turns."""
    sides = {"ernie": (sys.executable, "vision_ernie.py"), "hf": (environment_of("hf"), "vision_hf.py")}
    records = []
    with tempfile.TemporaryDirectory() as directory:
        homes = {model: make(Path(directory), model, args.steps + args.warmup) for model in SIZES}
        for turn in range(args.rounds):
            for case in args.cases.split(","):
                method, _, model = case.partition("-")
                for side in list(sides) if turn % 2 == 0 else reversed(list(sides)):
                    python, runner = sides[side]
                    words = [str(homes[model]), "--method", method, "--warmup", str(args.warmup)]
                    words += ["--threads", str(args.threads)]
                    wait_until_quiet(at_most=args.patience)
                    record = run_json([python, str(RUNNERS / runner), *words], {}, RUNNERS, timeout=1800)
                    records.append({"case": case, "side": side, **record})
                    print(json.dumps(records[-1]), flush=True)
    return records


def table(records: list[dict[str, Any]], warmup: int) -> str:
    """Medians over the steps of all turns; ratios are theirs over ours for time, ours over theirs for memory."""
    lines = [
        "| case | side | step s | CPU s | peak MB | above start | trained | loss 1 | × faster | × less CPU | memory | others |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in dict.fromkeys(record["case"] for record in records):
        found = {side: numbers(records, case, side, warmup) for side in ("ernie", "hf")}
        for side, n in found.items():
            if n is None:
                error = next(r.get("error", "") for r in records if (r["case"], r["side"]) == (case, side))
                lines.append(f"| {case} | {side} | does not run: {error.splitlines()[-1][:90] if error else ''} |")
                continue
            ratios, ours, theirs = " | | ", found["ernie"], found["hf"]
            if side == "ernie" and ours and theirs:
                ratios = f"{theirs['wall'] / ours['wall']:.2f} | {theirs['cpu'] / ours['cpu']:.2f} | "
                ratios += f"{ours['peak'] / theirs['peak']:.2f}, above start {ours['above'] / theirs['above']:.2f}"
            lines.append(
                f"| {case} | {side} | {n['wall']:.3f} | {n['cpu']:.2f} | {n['peak']:,.0f} | {n['above']:,.0f} | "
                f"{n['trained'] / 1e6:.2f} M | {n['loss']:.6f} | {ratios} | {n['others']:.2f} |"
            )
    return "\n".join(lines)


def numbers(records: list[dict[str, Any]], case: str, side: str, warmup: int) -> dict[str, float] | None:
    """Medians of one side, or ``None`` where no run ended."""
    runs = [r for r in records if (r["case"], r["side"]) == (case, side) and "result" in r]
    if not runs:
        return None
    results = [r["result"] for r in runs]

    def median(name: str) -> float:
        return statistics.median(value for result in results for value in result[name][warmup:])

    return {
        "wall": median("wall"),
        "cpu": median("cpu"),
        "peak": max(result["peak_mb"] for result in results),
        "above": max(result["peak_mb"] - result["start_mb"] for result in results),
        "trained": results[0]["trained"],
        "loss": results[0]["losses"][0],
        "others": statistics.median(r["others"] for r in runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join(CASES), help=f"some of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each side")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=1, help="steps that are not counted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine before a run")
    args = parser.parse_args()
    records = measure(args)
    print(f"\n{describe()}\n\n{table(records, args.warmup)}")


if __name__ == "__main__":
    main()
