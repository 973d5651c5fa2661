"""A tiny vision-language model, its tokenizer, and rows with images of one color each."""

import json

import pytest
from erniecore_ernie45_vl.seeing import END, PLACEHOLDER, START, VIDEO_END, VIDEO_PLACEHOLDER, VIDEO_START
from erniecore_model_init.new_model import init_model
from erniecore_text.training import train
from PIL import Image

#: an even number, so that two ranks share the vocabulary
TOKENS = (PLACEHOLDER, START, END, VIDEO_START, VIDEO_END, VIDEO_PLACEHOLDER)
COLORS = {"red": (230, 20, 20), "green": (20, 200, 40), "blue": (30, 40, 220)}


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A model of three layers and one of four, and rows whose images are of one color each; every fourth row is a text."""
    home = tmp_path_factory.mktemp("vl")
    texts = [f"What color is it? {name}. Say {name}. {i}" for name in COLORS for i in range(40)]
    (home / "tok").mkdir()
    made = train(texts, 320)
    made.save(home / "tok")
    ids = {token: made.vocab_size + i for i, token in enumerate(TOKENS)}
    (home / "tok" / "added_tokens.json").write_text(json.dumps(ids))
    keys = {"im_patch_id": PLACEHOLDER, "image_start_token_id": START, "image_end_token_id": END}
    keys |= {"video_start_token_id": VIDEO_START, "video_end_token_id": VIDEO_END, "video_token_id": VIDEO_PLACEHOLDER}
    for name, layers in (("base", 3), ("deep", 4)):
        size = {"hidden_size": 64, "num_hidden_layers": layers} | {key: ids[token] for key, token in keys.items()}
        told = ",".join(f"{key}={value}" for key, value in size.items())
        init_model("ernie45-vl", f"tiny,{told}", home / "tok", home / name, seed_value=3)
    (home / "img").mkdir()
    with (home / "rows.jsonl").open("w") as file:
        for i in range(24):
            name = list(COLORS)[i % 3]
            row = {"messages": [{"role": "user", "content": f"Say {name}."}, {"role": "assistant", "content": name}]}
            if i % 4:
                Image.new("RGB", (56 + 28 * (i % 2), 56), COLORS[name]).save(home / "img" / f"{i}.png")
                row["messages"][0]["content"] = "<image>What color is it?"
                row["images"] = [f"img/{i}.png"]
            file.write(json.dumps(row) + "\n")
        missing = {"messages": [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": "x"}]}
        file.write(json.dumps({**missing, "images": ["img/none.png"]}) + "\n")
    return home
