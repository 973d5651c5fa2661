"""A tiny PaddleOCR-VL, its tokenizer, and rows with images of one shade each."""

import json

import pytest
from erniecore_ernie45_vl.seeing import END, PLACEHOLDER, START
from erniecore_model_init.new_model import init_model
from erniecore_text.training import train
from PIL import Image

SHADES = {"dark": 20, "grey": 120, "light": 230}


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A model, and rows whose images are of one shade each; every fourth row is a text."""
    home = tmp_path_factory.mktemp("ocr")
    (home / "tok").mkdir()
    texts = [f"OCR: Say {name}. {i} User: Assistant:" for name in SHADES for i in range(40)]
    made = train(texts, 321)  # with three tokens more an even number, so that two ranks share it
    made.save(home / "tok")
    ids = {PLACEHOLDER: made.vocab_size, START: made.vocab_size + 1, END: made.vocab_size + 2}
    (home / "tok" / "added_tokens.json").write_text(json.dumps(ids))
    keys = {"image_token_id": PLACEHOLDER, "vision_start_token_id": START, "vision_end_token_id": END}
    size = ",".join(["hidden_size=64", "num_hidden_layers=4", *(f"{key}={ids[token]}" for key, token in keys.items())])
    init_model("paddleocr-vl", f"tiny,{size}", home / "tok", home / "base", seed_value=3)
    (home / "img").mkdir()
    with (home / "rows.jsonl").open("w") as file:
        for i in range(24):
            name = list(SHADES)[i % 3]
            row = {"messages": [{"role": "user", "content": f"Say {name}."}, {"role": "assistant", "content": name}]}
            if i % 4:
                shade = SHADES[name]
                Image.new("RGB", (56 + 28 * (i % 2), 56), (shade, shade, shade)).save(home / "img" / f"{i}.png")
                row["messages"][0]["content"] = "<image>" if i % 2 else "<image>OCR:"
                row["images"] = [f"img/{i}.png"]
            file.write(json.dumps(row) + "\n")
    return home
