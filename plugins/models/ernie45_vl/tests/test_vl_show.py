"""``ernie data show`` of rows with images and videos: what is printed, and the files of what the vision tower reads."""

import base64
import io
import json

import numpy as np
import pytest
from erniecore_ernie45_vl.images import Sizing, frames_of, patches, resized
from erniecore_ernie45_vl.positions import Grid
from erniecore_ernie45_vl.seeing import END, PLACEHOLDER, START
from PIL import Image
from small_videos import video

from erniecore.cli.app import main

SETTINGS = ["model.video_min_pixels=3136", "model.video_min_frames=2", "model.video_timestamps=false"]


@pytest.fixture(scope="module")
def rows(home, tmp_path_factory):
    """A text; two images, one of them in the row itself; a video of three frames that the model sees, of which the last twice."""
    folder = tmp_path_factory.mktemp("show")
    noise = np.random.default_rng(0).integers(0, 255, (90, 61, 3), np.uint8)
    Image.fromarray(noise).save(folder / "noise.png")
    file = io.BytesIO()
    Image.new("RGB", (56, 56), (1, 2, 3)).save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    (folder / "v.mp4").write_bytes(video(15, size=(56, 84)))
    asked = [
        {"content": "Say red."},
        {"content": "<image><image>Which?", "images": ["noise.png", url]},
        {"content": "<video>What happens?", "videos": ["v.mp4"]},
    ]
    with (folder / "rows.jsonl").open("w") as out:
        for ask in asked:
            turns = [{"role": "user", "content": ask.pop("content")}, {"role": "assistant", "content": "red"}]
            out.write(json.dumps({"messages": turns, **ask}) + "\n")
    return folder / "rows.jsonl"


def shown(capsys, rows, home, *arguments):
    code = main(["data", "show", str(rows), "--model", str(home / "base"), *SETTINGS, *arguments])
    found = capsys.readouterr()
    return code, found.out, found.err


@pytest.mark.parametrize("by_rows", [False, True])
def test_frames_come_back_from_patches_exactly(by_rows):
    sizing = Sizing(by_rows=by_rows)
    frames = np.random.default_rng(1).integers(0, 256, (2, 56, 84, 3)).astype(np.uint8)
    np.testing.assert_array_equal(frames_of(patches(frames, sizing), Grid(2, 4, 6), sizing), frames)


def test_placeholders_are_folded_and_each_image_is_described(capsys, rows, home):
    code, out, _ = shown(capsys, rows, home)
    assert code == 0
    assert f"{START}{PLACEHOLDER}×6{END}" in out
    assert f"{PLACEHOLDER}{PLACEHOLDER}" not in out
    assert "1. image noise.png: 56 x 84 pixels, 6 tokens, 24 patches\n" in out
    assert "2. image data:image/png;base64," in out
    assert "…: 56 x 56 pixels, 4 tokens, 16 patches\n" in out
    assert "1. video v.mp4: 4 frames of 56 x 84 pixels from 0.20 to 1.20 s, 12 tokens, 96 patches\n" in out


def test_files_hold_what_the_tower_reads(capsys, rows, home, tmp_path):
    code, out, _ = shown(capsys, rows, home, "--images", str(tmp_path / "seen"), "--json")
    text, images, moving = json.loads(out)
    assert code == 0
    assert "media" not in text
    assert [(m["kind"], m["tokens"], m["patches"]) for m in images["media"]] == [("image", 6, 24), ("image", 4, 16)]
    with Image.open(rows.parent / "noise.png") as stored, Image.open(images["media"][0]["files"][0]) as seen:
        np.testing.assert_array_equal(np.asarray(seen), resized(stored, (84, 56)))
    (known,) = moving["media"]
    assert [f"{seconds:.2f}" for seconds in known["seconds"]] == ["0.20", "0.80", "1.20", "1.20"]
    names = [f"3-line3-video1-frame{i:03d}-{s}s.png" for i, s in enumerate(("0.20", "0.80", "1.20", "1.20"), 1)]
    assert [path.rsplit("/", 1)[1] for path in known["files"]] == names
    assert sorted(path.name for path in (tmp_path / "seen").iterdir())[2:] == names
    assert moving["tokens"] == len(moving["input_ids"])
    last, again = (Image.open(path).tobytes() for path in known["files"][2:])
    assert last == again


def test_a_directory_that_holds_something_is_left_alone(capsys, rows, home, tmp_path):
    (tmp_path / "mine.png").write_text("mine")
    code, _, err = shown(capsys, rows, home, "--images", str(tmp_path))
    assert code == 2
    assert "--images" in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.png"]
