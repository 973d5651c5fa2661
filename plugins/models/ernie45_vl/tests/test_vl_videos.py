"""Rows with videos become samples and batches: frames, times, tokens, kinds, positions; and a model learns from them."""

import base64
import io
import json
import pickle

import av
import numpy as np
import pytest
from erniecore_ernie45_vl.config import VlConfig
from erniecore_ernie45_vl.images import Sizing, read_images, read_videos
from erniecore_ernie45_vl.positions import IMAGE, VIDEO
from erniecore_ernie45_vl.prompts import MEDIA
from erniecore_ernie45_vl.seeing import (
    END,
    PLACEHOLDER,
    START,
    VIDEO_END,
    VIDEO_PLACEHOLDER,
    VIDEO_START,
)
from erniecore_ernie45_vl.templating import read_vl_tokenizer
from erniecore_formats import erniekit, messages
from erniecore_media import write_time
from erniecore_sft.encoder import SftEncoder
from erniecore_text.training import train
from PIL import Image
from small_videos import video

import erniecore
from erniecore.api import DataError, RowError
from erniecore.api.data import Origin
from erniecore.api.method import IGNORE
from erniecore.data.collate import collate

TEXTS = [
    "What happens? It turns red, then blue.",
    f"User: Assistant: 1: {MEDIA['image'][0]} Video think",
    *map(str, range(40)),
]
SMALL = {"video_min_pixels": 56 * 56, "video_min_frames": 2}


def all_frames(data):
    with av.open(io.BytesIO(data)) as file:
        return [frame.to_image() for frame in file.decode(video=0)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    (folder / "a.mp4").write_bytes(video(20, size=(84, 56)))  # 2 seconds: 4 frames
    (folder / "b.mp4").write_bytes(video(15, size=(56, 84)))  # 1.5 seconds: 3 frames and the last again
    for i in range(5):
        Image.new("RGB", (56, 56), (50 * i, 20, 20)).save(folder / f"f{i}.png")
    return folder


@pytest.fixture(scope="module")
def made():
    return train([*TEXTS, *TEXTS], 325)


def reader(made, folder, *tokens, **settings):
    directory = folder / ("tok" + str(len(tokens)))
    directory.mkdir(exist_ok=True)
    made.save(directory)
    added = {token: made.vocab_size + i for i, token in enumerate([PLACEHOLDER, START, END, *tokens])}
    (directory / "added_tokens.json").write_text(json.dumps(added))
    return read_vl_tokenizer(directory, VlConfig(**{**SMALL, **settings}))


@pytest.fixture(scope="module")
def tokenizer(made, folder):
    return reader(made, folder, VIDEO_START, VIDEO_END)


def encode(tokenizer, folder, text, **media):
    turns = [{"role": "user", "content": text}, {"role": "assistant", "content": "red"}]
    record = messages.parse({"messages": turns, **media}, Origin(str(folder / "rows.jsonl"), 1))
    return SftEncoder(tokenizer, 4000).encode(record)


def batch_of(tokenizer, *lists):
    laid = [list(one) for one in lists]
    return tokenizer.chat_template.complete(collate(laid, pad_id=0), laid)


def seen(folder, name, indices, rate):
    """Patches of these frames, by the functions for frames that somebody chose."""
    frames = all_frames((folder / name).read_bytes())
    chosen = [frames[i].copy() for i in indices]
    for image, i in zip(chosen, indices, strict=True):
        write_time(image, i / rate)
    return read_videos([chosen], Sizing(fewest=56 * 56, most=1196 * 784))


def test_tokens_frames_and_labels(tokenizer, folder):
    (sample,) = encode(tokenizer, folder, "<video>What happens?", videos=["a.mp4"])
    facts = json.loads(sample.media[0])
    assert facts["frames"] == [[i, i / 10] for i in (2, 8, 12, 18)]  # 2.5, 7.5, 12.5, 17.5 to even
    assert facts["grid"] == [4, 4, 6]
    ids = tokenizer.special_tokens
    text = tokenizer.decode(sample.input_ids.tolist(), skip_special=False)
    assert f"Video 1:{VIDEO_START}" + PLACEHOLDER * 12 + VIDEO_END + "What happens?" in text
    assert [(sample.input_ids == ids[t]).sum() for t in (VIDEO_START, PLACEHOLDER, VIDEO_END)] == [1, 12, 1]
    assert tokenizer.decode(sample.labels[sample.labels != IGNORE].tolist(), skip_special=False) == "red</s>"


def test_pixels_are_those_of_the_frames_with_their_times(tokenizer, folder):
    batch = batch_of(tokenizer, encode(tokenizer, folder, "<video>?", videos=["a.mp4"]))
    expected = seen(folder, "a.mp4", [2, 8, 12, 18], 10)
    np.testing.assert_array_equal(batch.inputs["pixel_values_videos"], expected.values)
    np.testing.assert_array_equal(batch.inputs["video_grid_thw"], [[4, 4, 6]])
    assert "pixel_values" not in batch.inputs


def test_an_odd_number_of_frames_ends_with_the_last_one_again(tokenizer, folder):
    batch = batch_of(tokenizer, encode(tokenizer, folder, "<video>?", videos=["b.mp4"]))
    expected = seen(folder, "b.mp4", [2, 8, 12], 10)
    np.testing.assert_array_equal(batch.inputs["video_grid_thw"], [[4, 6, 4]])
    np.testing.assert_array_equal(batch.inputs["pixel_values_videos"], expected.values)
    frames = expected.values.reshape(4, -1)
    np.testing.assert_array_equal(frames[2], frames[3])


def counted(kinds, grids):
    """Positions by the definition: text counts up, a video at s has (s + t, s + h, s + w), then max + 1."""
    out, at, left = [], 0, {kind: list(found) for kind, found in grids.items()}
    i = 0
    while i < len(kinds):
        if kinds[i] == 0:
            out.append([at] * 3)
            at, i = at + 1, i + 1
            continue
        frames, rows, columns = left[kinds[i]].pop(0)
        block = [
            [at + t, at + h, at + w]
            for t in range(max(1, frames // 2))
            for h in range(rows // 2)
            for w in range(columns // 2)
        ]
        out += block
        at, i = max(max(place) for place in block) + 1, i + len(block)
    return out


def test_several_videos_and_images_have_exact_positions_and_kinds(tokenizer, folder):
    text = "<video>one<image>two<video>three<image>four<video>?"
    one = encode(tokenizer, folder, text, videos=["a.mp4", "b.mp4", "a.mp4"], images=["f1.png", "f2.png"])
    two = encode(tokenizer, folder, "<video>?<video>", videos=["b.mp4", "a.mp4"])
    batch = batch_of(tokenizer, [*one, *two])
    kinds, n = batch.inputs["mm_token_type_ids"][0], len(one[0])
    a, b, still = (4, 4, 6), (4, 6, 4), (1, 4, 4)
    assert batch.inputs["video_grid_thw"].tolist() == [list(g) for g in (a, b, a, b, a)]
    assert batch.inputs["image_grid_thw"].tolist() == [list(still)] * 2
    expected = counted(kinds[:n].tolist(), {VIDEO: [a, b, a], IMAGE: [still] * 2})
    assert batch.position_ids[0, :n].tolist() == expected
    assert batch.position_ids[0, n:].tolist() == counted(kinds[n:].tolist(), {VIDEO: [b, a]})
    order = [kinds[i] for i in range(n) if kinds[i] and kinds[i] != kinds[i - 1]]
    assert order == [VIDEO, IMAGE, VIDEO, IMAGE, VIDEO]
    around = (batch.inputs["moe_mm_token_type_ids"] != 0).sum() - (kinds != 0).sum()
    assert around == 2 * 7
    text = tokenizer.decode(one[0].input_ids.tolist(), skip_special=False)
    assert [text.count(f"{word} {i}:") for word, _ in (MEDIA["video"], MEDIA["image"]) for i in (1, 2, 3)] == [
        1,
        1,
        1,
        1,
        1,
        0,
    ]


def test_packed_videos_are_those_of_separate_samples_in_every_copy(tokenizer, folder):
    one = encode(tokenizer, folder, "<video>?", videos=["a.mp4"])
    two = encode(tokenizer, folder, "<video><image>?", videos=["b.mp4"], images=["f3.png"])
    packed = batch_of(tokenizer, [*one, *two])
    again = batch_of(pickle.loads(pickle.dumps(tokenizer)), [*one, *two])
    apart = [batch_of(tokenizer, samples) for samples in (one, two)]
    for name in packed.inputs:
        np.testing.assert_array_equal(again.inputs[name], packed.inputs[name])
    joined = np.concatenate([batch.inputs["pixel_values_videos"] for batch in apart])
    np.testing.assert_array_equal(packed.inputs["pixel_values_videos"], joined)
    np.testing.assert_array_equal(packed.position_ids[0], np.concatenate([b.position_ids[0] for b in apart]))


def test_forms_of_rows_give_the_same_sample(tokenizer, folder):
    (expected,) = encode(tokenizer, folder, "<video>What happens?", videos=["a.mp4"])
    url = "data:video/mp4;base64," + base64.b64encode((folder / "a.mp4").read_bytes()).decode()
    asked = {"type": "text", "text": "What happens?"}
    origin = Origin(str(folder / "rows.jsonl"), 1)
    parts = [
        {"type": "video_url", "video_url": {"url": "a.mp4"}},
        {"type": "video_url", "video_url": {"url": url}},
        {"type": "video", "video": "a.mp4"},
    ]
    rows = [[{"role": "user", "content": [p, asked]}, {"role": "assistant", "content": "red"}] for p in parts]
    records = [messages.parse({"messages": row}, origin) for row in rows]
    texts = [{"text": "What happens?", "tag": "mask"}, {"text": "red", "tag": "no_mask"}]
    kit = {"text_info": texts, "video_info": [{"matched_text_index": 0, "image_url": "a.mp4"}]}
    records.append(erniekit.parse(kit, origin))
    for record in records:
        (sample,) = SftEncoder(tokenizer, 4000).encode(record)
        np.testing.assert_array_equal(sample.input_ids, expected.input_ids)
        assert json.loads(sample.media[0])["frames"] == json.loads(expected.media[0])["frames"]
    again = messages.parse(messages.write(records[0]), origin)
    assert [(m.kind, m.source) for m in again.messages[0].media] == [("video", "a.mp4")]


def test_a_list_of_frames(tokenizer, folder):
    listed = [f"f{i}.png" for i in range(3)]
    (sample,) = encode(tokenizer, folder, "<video>?", videos=[listed])
    assert json.loads(sample.media[0])["frames"] == [[0, 0.0], [1, 0.5], [2, 1.0]]
    batch = batch_of(tokenizer, [sample])
    images = [Image.open(folder / name).convert("RGB") for name in listed]
    for i, image in enumerate(images):
        write_time(image, i / 2)
    expected = read_videos([images], Sizing(fewest=56 * 56, most=1196 * 784))
    np.testing.assert_array_equal(batch.inputs["pixel_values_videos"], expected.values)


def test_settings_choose_frames_sizes_and_times(made, folder):
    def facts(**settings):
        tokenizer = reader(made, folder, VIDEO_START, VIDEO_END, VIDEO_PLACEHOLDER, **settings)
        (sample,) = encode(tokenizer, folder, "<video>?", videos=["a.mp4"])
        found = json.loads(sample.media[0])
        return tokenizer, sample, [i for i, _ in found["frames"]], found["grid"]

    tokenizer, sample, frames, _ = facts(video_min_frames=6)
    assert frames == [1, 4, 7, 11, 14, 17]
    assert (sample.input_ids == tokenizer.special_tokens[VIDEO_PLACEHOLDER]).sum() == 3 * 6
    assert batch_of(tokenizer, [sample]).inputs["mm_token_type_ids"].max() == VIDEO
    assert facts(video_frames="linspace", video_max_frames=3)[2] == [0, 9, 19]
    assert facts(video_frames="intervals", video_fps=1.0)[2] == [4, 14]
    assert facts(video_target_frames=2, video_max_pixels=28 * 56, video_min_pixels=28 * 28)[3] == [2, 2, 2]
    plain, sample, frames, _ = facts(video_timestamps=False)
    expected = read_videos([[all_frames((folder / "a.mp4").read_bytes())[i] for i in frames]], Sizing(fewest=56 * 56))
    np.testing.assert_array_equal(batch_of(plain, [sample]).inputs["pixel_values_videos"], expected.values)


@pytest.mark.parametrize(
    ("settings", "media", "message"),
    [
        ({}, "none.mp4", "does not exist"),
        ({}, "f1.png", "not a video"),
        ({}, "http://a/b.mp4", "URLs"),
        ({}, "../a.mp4", "outside"),
        ({"video_most_seconds": 1.0}, "a.mp4", "too long"),
        ({"video_most_pixels": 4000}, "a.mp4", "too large"),
        ({"video_most_bytes": 500}, "a.mp4", "too large"),
        ({}, ["f1.png", "none.png"], "does not exist"),
    ],
)
def test_videos_that_are_refused_by_their_row(made, folder, settings, media, message):
    tokenizer = reader(made, folder, VIDEO_START, VIDEO_END, **settings)
    with pytest.raises(RowError, match=message) as error:
        encode(tokenizer, folder, "<video>?", videos=[media])
    assert (error.value.where.startswith("$.videos[0]"), error.value.code) == (True, "ERN-D039")


def test_frames_of_several_sizes_and_a_tokenizer_without_videos(tokenizer, made, folder):
    Image.new("RGB", (84, 56)).save(folder / "wide.png")
    with pytest.raises(RowError, match="several sizes"):
        encode(tokenizer, folder, "<video>?", videos=[["f1.png", "wide.png"]])
    with pytest.raises(RowError, match="no token for videos"):
        encode(reader(made, folder), folder, "<video>?", videos=["a.mp4"])


def test_a_video_that_changed_is_refused(tokenizer, folder):
    (folder / "late.mp4").write_bytes(video(20, size=(84, 56)))
    samples = encode(tokenizer, folder, "<video>?", videos=["late.mp4"])
    assert tokenizer.chat_template.unchanged(samples[0].media[0])
    (folder / "late.mp4").write_bytes(video(20, level=7))
    assert not tokenizer.chat_template.unchanged(samples[0].media[0])
    with pytest.raises(DataError, match="video has changed since"):
        batch_of(tokenizer, samples)


def test_a_marker_without_videos_is_text(tokenizer, folder):
    (sample,) = encode(tokenizer, folder, "<image>Is <video> a word?", images=["f1.png"])
    assert "Is <video> a word?" in tokenizer.decode(sample.input_ids.tolist())
    assert len(sample.media) == 1
    assert read_images([folder / "f1.png"]).tokens == [4]


def test_a_model_learns_from_videos_and_images(home, tmp_path):
    levels = {"red": 30, "green": 220}
    with (tmp_path / "rows.jsonl").open("w") as file:
        for i in range(8):
            name = sorted(levels)[i % 2]
            (tmp_path / f"{i}.mp4").write_bytes(video(10 + i, size=(56, 56), level=levels[name]))
            turns = [{"role": "user", "content": "<video>What color is it?"}, {"role": "assistant", "content": name}]
            file.write(json.dumps({"messages": turns, "videos": [f"{i}.mp4"]}) + "\n")
    words = [
        f"model.path={home / 'base'}",
        "model.video_min_frames=2",
        "model.video_min_pixels=3136",
        "method=sft",
        "adapter=lora",
        f"data.train=[{tmp_path / 'rows.jsonl'},{home / 'rows.jsonl'}]",
        "data.max_seq_len=96",
        "data.max_drop=0.05",
        "train.batch_size=2",
        "train.max_steps=8",
        "train.learning_rate=0.02",
        "train.warmup_ratio=0",
        "log.report=false",
        f"run.out={tmp_path / 'run'}",
    ]
    erniecore.run(None, words, console="none")
    lines = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["event"] == "step"]
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.3
    report = json.loads((tmp_path / "run" / "data_report.json").read_text())["train"]
    assert (report["rows"], report["kept"], report["dropped"]) == (33, 32, 1)
