"""Videos: which frames, which pixels, and what is refused before it costs anything."""

import io
import re
import struct
from pathlib import Path

import av
import numpy as np
import pytest
from erniecore_media import (
    FrameChoice,
    MediaError,
    VideoLimits,
    decode_frames,
    inspect_video,
    write_time,
)
from erniecore_media.timestamps import time_text
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from small_videos import video

from erniecore.api import EnvironmentFault

LIMITS = VideoLimits()


FILES = [
    ("libx264", "mp4"),
    ("mpeg4", "mp4"),
    ("libvpx", "webm"),
    ("mjpeg", "avi"),
    ("libx264", "matroska"),
    ("libx264", "mpegts"),
]


@pytest.mark.parametrize(("codec", "container"), FILES)
def test_header_and_frames(codec, container):
    data = video(codec=codec, container=container)
    assert inspect_video(data, LIMITS) == (64, 48, 30, 10.0)
    frames = list(decode_frames(data, [0, 14, 15, 29], LIMITS))
    assert [(f.mode, f.size) for f in frames] == [("RGB", (64, 48))] * 4
    levels = [np.asarray(f).mean() for f in frames]
    np.testing.assert_allclose(levels, [0, 14 * 255 / 29, 15 * 255 / 29, 255], atol=4)
    assert levels == sorted(levels)


def test_rules_by_hand():
    # 4 seconds of 25 frames: middles of half seconds are 0.25, 0.75 and so on, frames 6.25, 18.75 and so on
    assert FrameChoice(fewest=1).indices(100, 25.0) == [6, 19, 31, 44, 56, 69, 81, 94]
    assert FrameChoice(fewest=4, most=4).indices(100, 25.0) == [12, 37, 62, 87]
    assert FrameChoice().indices(100, 25.0) == FrameChoice("intervals", target=16).indices(100, 25.0)
    assert FrameChoice().indices(5, 25.0) == [0, 1, 2, 3, 4]
    assert FrameChoice(target=3).indices(30, 25.0) == [4, 14, 24]
    assert FrameChoice("intervals").indices(100, 25.0) == [5, 18, 30, 43, 55, 68, 80, 93]
    assert FrameChoice("intervals").indices(10, 25.0) == [4]
    assert FrameChoice("linspace").indices(100, 25.0) == [0, 14, 28, 42, 56, 70, 84, 99]
    assert FrameChoice("linspace", most=2).indices(100, 25.0) == [0, 99]


@given(
    st.sampled_from(["fps", "intervals", "linspace"]),
    st.integers(1, 4000),
    st.floats(0.5, 120),
    st.floats(0.1, 60),
    st.integers(1, 20),
    st.integers(1, 600),
    st.integers(0, 40),
)
def test_every_rule_gives_frames_that_are_there(rule, total, rate, fps, fewest, most, target):
    found = FrameChoice(rule, fps, min(fewest, most), most, target).indices(total, rate)
    assert found
    assert found == sorted(found)
    assert found[0] >= 0
    assert found[-1] < total
    assert len(found) <= most + 1  # rounding of the last middle
    if target:
        assert len(found) == min(target, most, total)


def test_text_of_times():
    texts = {0: "00:00:00.00", 0.25: "00:00:00.25", 61.5: "00:01:01.50", 3600 + 120 + 3.456: "01:02:03.46"}
    assert {seconds: time_text(seconds) for seconds in texts} == {s: f"time: {t}" for s, t in texts.items()}


def test_a_time_in_its_corner():
    """Against a stored image; fonts are drawn a little differently by other versions of FreeType."""
    image = Image.new("RGB", (240, 120), (90, 140, 200))
    write_time(image, 61.5)
    expected = np.asarray(Image.open(Path(__file__).parent / "time_61.5.png").convert("RGB")).astype(float)
    found = np.asarray(image).astype(float)
    assert np.abs(found - expected).mean() < 0.5
    assert np.abs(found - (90, 140, 200)).mean() > 2
    assert (found[40:] == (90, 140, 200)).all()
    small = Image.new("RGB", (9, 50), "white")
    write_time(small, 1)
    assert np.asarray(small).min() == 255


def test_a_font_that_is_no_font():
    with pytest.raises(EnvironmentFault, match="font cannot be read"):
        write_time(Image.new("RGB", (99, 99)), 1, __file__)


# ---- what is refused


def matroska_with_duration(seconds):
    """The header of a file of 3 seconds says another length."""
    data = bytearray(video(container="matroska"))
    at = data.index(b"\x44\x89\x88") + 3  # EBML element Duration, a float64 of milliseconds
    data[at : at + 8] = struct.pack(">d", seconds * 1000)
    return bytes(data)


def slow():
    """Each of 30 frames stays for 1,024 seconds."""
    data = bytearray(video())
    at = data.index(b"mdhd") + 16
    data[at : at + 4] = struct.pack(">I", 10)
    return bytes(data)


PLAYLIST = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n/etc/passwd\n#EXT-X-ENDLIST\n"


@pytest.mark.parametrize(
    ("data", "limits", "message"),
    [
        (b"", LIMITS, "not a video"),
        (b"x" * 5000, LIMITS, "not a video"),
        (PLAYLIST, LIMITS, "not a video"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", LIMITS, "not a video"),
        (video()[:900], LIMITS, "not a video"),
        (matroska_with_duration(36000), LIMITS, "too long"),
        (matroska_with_duration(0.001), VideoLimits(frames=20), "too many frames"),
        (slow(), LIMITS, "too long"),
        (video(count=90, rate=1, size=(16, 16)), VideoLimits(seconds=60), "too long"),
        (video(), VideoLimits(pixels=64 * 47), "too large"),
        (video(), VideoLimits(frames=29), "too many frames"),
        (video(codec="flv1", container="flv"), LIMITS, "not a video"),
    ],
)
def test_videos_that_are_refused_by_their_header(data, limits, message):
    with pytest.raises(MediaError, match=message) as error:
        inspect_video(data, limits)
    assert error.value.found


def test_a_file_that_lies_about_its_length():
    data = matroska_with_duration(1500)  # within the limit, and 500 times what there is
    header = inspect_video(data, LIMITS)
    assert header.total == 30  # counted
    with pytest.raises(MediaError, match="ends early"):
        list(decode_frames(video(), [3, 30], LIMITS))


def test_damaged_pixels_end_in_the_same_error():
    data = bytearray(video(codec="mjpeg", container="avi"))
    start = data.index(b"movi") + 400
    data[start : start + 4000] = bytes(4000)
    with pytest.raises(MediaError):
        list(decode_frames(bytes(data), range(30), LIMITS))


def test_a_sound_is_no_video():
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as file:
        stream = file.add_stream("aac", rate=44100)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 44100
        file.mux(stream.encode(frame))
        file.mux(stream.encode())
    with pytest.raises(MediaError, match="has no video"):
        inspect_video(out.getvalue(), LIMITS)


def test_without_pyav_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(EnvironmentFault, match="PyAV") as error:
        inspect_video(b"x", LIMITS)
    assert re.search(r"install .*av>=13|make install", error.value.next)
