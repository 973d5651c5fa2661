"""Videos of runs: a resumed run goes on with the same bits, and videos of hours are refused before they take memory."""

import json
import shutil
import subprocess
import sys

import pytest
from erniecore_checkpoint.reader import load_checkpoint
from erniecore_ernie45_vl.images import Sizing
from erniecore_ernie45_vl.videos import VideoReading
from erniecore_media import MediaError, VideoLimits
from PIL import Image
from small_videos import video

import erniecore
from erniecore.cli.app import main

#: in a process of its own: what refused a file, and by how many bytes the process has grown
REFUSE = """
import resource, sys
from pathlib import Path
from erniecore_media import Limits, MediaError, VideoLimits, inspect_video, read_bytes
path, small = Path(sys.argv[1]), Path(sys.argv[2])
inspect_video(small.read_bytes(), VideoLimits())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    inspect_video(read_bytes(path.name, [path.parent], VideoLimits()), VideoLimits())
except MediaError as error:
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(error.message, "|", 1024 * grown)
"""


def tensors(out):
    checkpoint = load_checkpoint(out / "ckpt" / "step-00000004")
    return {(g, n): array.tobytes() for g, members in checkpoint.tensors.items() for n, array in members.items()}


def test_a_resumed_run_on_videos_goes_on_with_the_same_bits(home, tmp_path):
    """With other workers; two sizes and lengths of videos, packed with an image and a text."""
    for i in range(2):
        (tmp_path / f"{i}.mp4").write_bytes(video(10 + 5 * i, size=(56, 56 + 28 * i)))
    Image.new("RGB", (56, 56), "red").save(tmp_path / "a.png")
    kinds = [{"videos": ["0.mp4"]}, {"videos": ["1.mp4"]}, {"images": ["a.png"]}, {}]
    with (tmp_path / "rows.jsonl").open("w") as file:
        for i in range(16):
            marker = "".join({"videos": "<video>", "images": "<image>"}[name] for name in kinds[i % 4])
            turns = [{"role": "user", "content": f"{marker}Say {i}."}, {"role": "assistant", "content": "red"}]
            file.write(json.dumps({"messages": turns, **kinds[i % 4]}) + "\n")
    out = tmp_path / "run"
    words = [
        f"model.path={home / 'base'}",
        "model.train=text,vision,resampler",
        "model.video_min_frames=2",
        "model.video_min_pixels=3136",
        "method=sft",
        f"data.train={tmp_path / 'rows.jsonl'}",
        "data.max_seq_len=96",
        "train.batch_size=1",
        "train.accumulation=2",
        "train.max_steps=4",
        "train.learning_rate=0.01",
        "checkpoint.every=2",
        "log.report=false",
        f"run.out={out}",
    ]
    erniecore.run(None, [*words, "data.workers=0"], console="none")
    whole = tensors(out)
    shutil.rmtree(out / "ckpt" / "step-00000004")
    (out / "ckpt" / "latest.json").unlink()
    erniecore.run(None, [*words, "data.workers=2", "run.resume=must"], console="none")
    assert tensors(out) == whole


@pytest.fixture(scope="module")
def hours(tmp_path_factory):
    """Five hours, a frame a second: with the length in the header, and without it, as a stream is stored."""
    folder = tmp_path_factory.mktemp("hours")
    (folder / "small.mp4").write_bytes(video())
    for name, container in (("told.mp4", "mp4"), ("stream.ts", "mpegts")):
        (folder / name).write_bytes(video(18000, 1, (64, 64), "mpeg4", container, level=90))
    with (folder / "sparse.mp4").open("wb") as file:
        file.truncate(300 << 20)  # larger than what is read
    return folder


@pytest.mark.parametrize(
    ("name", "message"), [("told.mp4", "too long"), ("stream.ts", "too long"), ("sparse.mp4", "file is too large")]
)
def test_videos_of_hours_are_refused_in_bounded_memory(hours, name, message):
    """Beyond the file itself, a small video before has loaded everything."""
    files = [str(hours / name), str(hours / "small.mp4")]
    found = subprocess.run([sys.executable, "-c", REFUSE, *files], capture_output=True, text=True, check=True)
    said, grown = found.stdout.split("|")
    assert message in said
    size = (hours / name).stat().st_size if name != "sparse.mp4" else 0
    assert int(grown) < size + (24 << 20)


def test_a_row_with_a_video_of_hours_is_dropped_by_its_line(home, hours, capsys):
    rows = hours / "rows.jsonl"
    turns = [{"role": "user", "content": "<video>?"}, {"role": "assistant", "content": "red"}]
    rows.write_text(json.dumps({"messages": turns, "videos": ["told.mp4"]}) + "\n")
    assert main(["data", "check", str(rows), "--model", str(home / "base"), "--json"]) == 4
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert (error["line"], error["path"], error["code"]) == (1, "$.videos[0]", "ERN-D039")
    assert "18000.0 seconds" in error["found"]


def test_a_list_of_frames_is_no_longer_and_no_larger_than_a_file():
    reading, asked = VideoReading(Sizing(), limits=VideoLimits(bytes=1000, seconds=10)), []

    def read(source):
        asked.append(source)
        return bytes(300)

    with pytest.raises(MediaError, match="too long") as error:
        reading.listed(["f.png"] * 21, read)  # two a second
    assert (error.value.found, asked) == ("10.5 seconds", [])
    with pytest.raises(MediaError, match="too large together") as error:
        reading.listed([f"{i}.png" for i in range(20)], read)
    assert asked == [f"{i}.png" for i in range(4)]
    assert "4 of 20" in error.value.found
    assert len(reading.listed(["f.png"] * 3, read)) == 3
