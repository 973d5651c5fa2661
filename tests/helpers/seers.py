"""A tiny model that sees, with large random weights so that it tells images apart, and three images.

``python tests/helpers/seers.py DIRECTORY [MODEL]`` makes one for programs that are no tests of this suite.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

MARKERS = {
    "ernie45-vl": ("im_patch_id", "image_start_token_id", "image_end_token_id"),
    "paddleocr-vl": ("image_token_id", "vision_start_token_id", "vision_end_token_id"),
}


VIDEO_MARKERS = ("video_token_id", "video_start_token_id", "video_end_token_id")


def make_seer(
    home: Path, name: str = "ernie45-vl", *, videos: bool = False, spread: float = 0.3, template: str | None = None
) -> Path:
    """``model/``, its tokenizer ``tok/`` and ``a.png``, ``b.png``, ``c.png`` in ``home``, which is there.

    ``spread``: of the weights. ``template``: another one than the usual one."""
    from erniecore_ernie45_vl.seeing import END, PLACEHOLDER, START, VIDEO_END, VIDEO_PLACEHOLDER, VIDEO_START
    from erniecore_model_init.new_model import init_model
    from erniecore_text.training import train
    from PIL import Image

    made = train([f"What is it? OCR: {i} User: Assistant:" for i in range(60)], 325)
    (home / "tok").mkdir()
    made.save(home / "tok")
    tokens = (PLACEHOLDER, START, END, *((VIDEO_PLACEHOLDER, VIDEO_START, VIDEO_END) if videos else ()))
    ids = {token: made.vocab_size + i for i, token in enumerate(tokens)}
    (home / "tok" / "added_tokens.json").write_text(json.dumps(ids))
    markers = MARKERS[name] + (VIDEO_MARKERS if videos else ())
    keys = ",".join(f"{key}={value}" for key, value in zip(markers, ids.values(), strict=True))
    init_model(
        name, f"tiny,initializer_range={spread},{keys}", home / "tok", home / "model", seed_value=5, template=template
    )
    rng = np.random.default_rng(0)
    for file, size in (("a.png", (56, 84)), ("b.png", (84, 56)), ("c.png", (140, 84))):
        Image.fromarray(rng.integers(0, 255, (*size, 3), np.uint8)).save(home / file)
    return home


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    make_seer(Path(sys.argv[1]), *sys.argv[2:3])
