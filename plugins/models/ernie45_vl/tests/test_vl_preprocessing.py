"""What a model directory says of images and videos, and videos of ``ernie generate`` and ``ernie chat``."""

import io
import json

import pytest
from erniecore_ernie45_vl.config import VlConfig
from erniecore_ernie45_vl.preprocessing import FONT, IMAGES, VIDEOS, Preprocessing
from erniecore_ernie45_vl.templating import read_vl_tokenizer
from erniecore_generation.media import asked
from PIL import ImageFont
from seers import make_seer
from small_videos import video

import erniecore
from erniecore.api import EnvironmentFault, Exit, UsageError
from erniecore.cli.app import main

#: small frames, few of them, by another rule
SAID = {
    "image_max_pixels": 100 * 784, "image_upright": True, "video_min_pixels": 3136, "video_max_pixels": 4 * 784,
    "video_frames": "linspace", "video_fps": 4.0, "video_min_frames": 3, "video_max_frames": 6, "video_target_frames": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A model that was made for small videos, and three videos beside it."""
    home = make_seer(tmp_path_factory.mktemp("videos"), videos=True)
    read_vl_tokenizer(home / "model", VlConfig(**SAID)).save(home / "model")
    for name, level in (("dark", 20), ("light", 230)):
        (home / f"{name}.mp4").write_bytes(video(20, level=level))
    (home / "broken.mp4").write_bytes(b"\0" * 100)
    return home


def test_a_saved_model_says_what_it_was_trained_with(home):
    found = erniecore.load_tokenizer(home / "model").preprocessing
    assert found == Preprocessing(**SAID)
    stated = Preprocessing.of(VlConfig(video_fps=1.0, image_upright=False, video_font=""), home / "model")
    assert stated == Preprocessing(**{**SAID, "video_fps": 1.0, "image_upright": False})
    assert Preprocessing.of(VlConfig(), home / "tok") == Preprocessing()  # no such files
    assert ImageFont.truetype(home / "model" / FONT, 20).getname()[0].startswith("Aileron")


def test_a_font_of_its_own_stays_with_the_model(home, tmp_path):
    font = tmp_path / "Own.ttf"
    font.write_bytes((home / "model" / FONT).read_bytes() + b"\0")  # another file with letters
    (tmp_path / "model").mkdir()
    read_vl_tokenizer(home / "tok", VlConfig(video_font=str(font))).save(tmp_path / "model")
    font.unlink()
    kept = Preprocessing.of(VlConfig(), tmp_path / "model").video_font
    assert kept == str(tmp_path / "model" / "Own.ttf")
    assert json.loads((tmp_path / "model" / VIDEOS).read_text())["font"] == "Own.ttf"


@pytest.mark.parametrize(
    ("file", "said", "message"),
    [
        (IMAGES, {"size": {"longest_edge": 5}}, "model.image_max_pixels: 5"),
        (IMAGES, {"min_pixels": "many"}, "model.image_min_pixels: 'many'"),
        (VIDEOS, {"fps": -1}, "model.video_fps: -1"),
        (VIDEOS, {"erniecore": {"video_frames": "all"}}, "model.video_frames: 'all'"),
    ],
)
def test_a_damaged_file_is_refused_at_its_key(file, said, message, tmp_path):
    (tmp_path / file).write_text(json.dumps(said))
    with pytest.raises(EnvironmentFault, match=message) as found:
        Preprocessing.of(VlConfig(), tmp_path)
    assert file in str(found.value)


def test_generate_shows_a_video(home, capsys):
    answers = {}
    for name in ("dark", "light", "dark"):
        shown = ["--video", str(home / f"{name}.mp4"), "--prompt", "What?"]
        command = [
            "generate",
            "--model",
            str(home / "model"),
            *shown,
            "--max-new-tokens",
            "6",
            "--ignore-eos",
            "--json",
        ]
        assert main(command) == Exit.OK
        answer = json.loads(capsys.readouterr().out)
        assert answers.setdefault(name, answer["ids"]) == answer["ids"]
    assert answers["dark"] != answers["light"]
    assert 8 < answer["prompt_tokens"] < 40  # 4 frames of 4 tokens, two of them together


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--video", "none.mp4", "--prompt", "What?"], Exit.DATA, "none.mp4"),
        (["--video", "broken.mp4", "--prompt", "What?"], Exit.DATA, "broken.mp4"),
        (["--video", "dark.mp4", "--prompt", "<video><video>"], Exit.USAGE, "videos and markers do not fit"),
        (["--video", "dark.mp4", "--prompt", "What?", "--raw"], Exit.USAGE, "--video needs the chat template"),
    ],
)
def test_a_video_that_cannot_be_shown_is_named(args, code, message, home, capsys, monkeypatch):
    monkeypatch.chdir(home)
    assert main(["generate", "--model", "model", *args]) == code
    assert message in capsys.readouterr().err


def test_images_and_videos_stand_where_their_markers_are(home):
    files = [home / "a.png"], [home / "dark.mp4", home / "light.mp4"]
    message = asked("<video> or <image> or <video>?", *files)
    assert [media.source for media in message.media] == ["dark.mp4", "a.png", "light.mp4"]
    assert asked("Which <image>?", *files).content == "<video><video>Which <image>?"
    with pytest.raises(UsageError, match="images and markers"):
        asked("<image><image>", *files)


def test_chat_shows_a_video_with_the_next_message_and_saves_it(home, monkeypatch, capsys, tmp_path):
    saved = tmp_path / "talk.jsonl"
    lines = ["/video", f"/video {home / 'dark.mp4'}", f"/image {home / 'a.png'}", "What is <video>?", f"/save {saved}"]
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in [*lines, "/video none.mp4"])))
    assert main(["chat", "--model", str(home / "model"), "--max-new-tokens", "4", "--temperature", "0"]) == Exit.OK
    err = capsys.readouterr().err
    assert "usage: /video FILE" in err
    assert "does not exist" in err
    row = json.loads(saved.read_text())
    assert row["messages"][0]["content"] == "<image>What is <video>?"
    assert (row["images"], row["videos"]) == ([str(home / "a.png")], [str(home / "dark.mp4")])


def test_a_text_model_refuses_a_video_by_name(talker, home, capsys):
    command = ["generate", "--model", str(talker / "model"), "--video", str(home / "dark.mp4"), "--prompt", "What?"]
    assert main(command) == Exit.USAGE
    assert "this model reads no videos" in capsys.readouterr().err
