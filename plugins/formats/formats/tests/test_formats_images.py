"""Rows with images: markers with a list beside them, parts, ERNIEKit's lists; what is refused, by path."""

import pytest
from erniecore_formats import erniekit, messages
from erniecore_formats.plugin import alpaca
from erniecore_formats.plugin import messages as plugin

from erniecore.api import RowError
from erniecore.api.data import Media, Message, Origin

HERE = Origin("some/rows.jsonl", 3)
TELL = {"role": "assistant", "content": "A cat."}


def part(**more):
    return {"messages": [{"role": "user", "content": [more, {"type": "text", "text": "What?"}]}, TELL]}


def images_of(record):
    return [(media.source, media.base, media.where) for message in record.messages for media in message.media]


@pytest.mark.parametrize(
    ("row", "content", "source", "where"),
    [
        (
            {"messages": [{"role": "user", "content": "<image>What?"}, TELL], "images": ["a.png"]},
            "<image>What?",
            "a.png",
            "$.images[0]",
        ),
        (
            {
                "conversations": [{"from": "human", "value": "a <image>"}, {"from": "gpt", "value": "b"}],
                "images": "a.png",
            },
            "a <image>",
            "a.png",
            "$.images[0]",
        ),
        (part(type="image_url", image_url={"url": "a.png"}), "<image>What?", "a.png", "image_url.url"),
        (part(type="image_url", image_url="a.png"), "<image>What?", "a.png", "$.messages[0].content[0].image_url"),
        (part(type="image_url", value="a.png"), "<image>What?", "a.png", "$.messages[0].content[0].value"),
        (part(type="image", image="a.png"), "<image>What?", "a.png", "$.messages[0].content[0].image"),
        (
            part(type="image_url", image_url={"url": "data:image/png;base64,aa", "detail": "low"}),
            "<image>What?",
            "data:image/png;base64,aa",
            "url",
        ),
    ],
)
def test_rows_with_an_image(row, content, source, where):
    record = messages.parse(row, HERE)
    assert record.messages[0].content == content
    ((found, base, place),) = images_of(record)
    assert (found, base) == (source, "some")
    assert place.endswith(where)
    again = messages.parse(messages.write(record), HERE)
    assert [m.content for m in again.messages] == [m.content for m in record.messages]
    assert [i[:2] for i in images_of(again)] == [(source, "some")]


def test_images_go_to_their_questions_in_order():
    turns = [
        {"role": "user", "content": "<image><image>Compare."},
        TELL,
        {"role": "user", "content": "And?"},
        TELL,
        {"role": "user", "content": "<image>"},
        TELL,
    ]
    record = messages.parse({"messages": turns, "images": ["a", "b", "c"]}, HERE)
    assert [[media.source for media in m.media] for m in record.messages] == [["a", "b"], [], [], [], ["c"], []]


def test_a_marker_without_images_is_text():
    record = messages.parse({"messages": [{"role": "user", "content": "What is <image>?"}, TELL]}, HERE)
    assert images_of(record) == []


ASK = {"role": "user", "content": "<image>What?"}


@pytest.mark.parametrize(
    ("row", "where", "message"),
    [
        ({"messages": [ASK, TELL], "images": ["a", "b"]}, "$.images", "differ in length"),
        ({"messages": [{"role": "user", "content": "What?"}, TELL], "images": ["a"]}, "$.images", "differ in length"),
        ({"messages": [ASK, TELL], "images": [3]}, "$.images[0]", "a path or a data URL"),
        ({"messages": [ASK, TELL], "images": ["a"], "videos": ["b"]}, "$.videos", "differ in length"),
        ({"messages": [ASK, TELL], "audios": ["b"]}, "$.audios", "not read here"),
        ({"messages": [ASK], "images": ["a", "b"], "chosen": "A", "rejected": "B"}, "$.images", "differ in length"),
        ({"messages": [ASK, TELL], "images": ["a", "b"], "label": True}, "$.images", "differ in length"),
        ({**part(type="image", image="a"), "images": ["b"]}, "$.images", "parts and beside"),
        (part(type="image_url"), "$.messages[0].content[0].image_url", "missing"),
        (part(type="audio_url", audio_url={"url": "a.wav"}), "$.messages[0].content[0].type", "not read here"),
        (part(type="video_url", video_url={"link": "a.mp4"}), "$.messages[0].content[0].video_url.url", "missing"),
        (part(type="video", video=[]), "$.messages[0].content[0].video", "a list of frames"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image", "image": "a"}, {"type": "text", "text": "<image>"}]},
                    TELL,
                ]
            },
            "$.messages[0].content",
            "has a marker",
        ),
        (
            {"messages": [ASK, {"role": "assistant", "content": [{"type": "image", "image": "a"}]}]},
            "$.messages[1].content[0].type",
            "not read here",
        ),
    ],
)
def test_what_is_refused(row, where, message):
    with pytest.raises(RowError, match=message) as error:
        messages.parse(row, HERE)
    assert error.value.where == where


def text(text, tag, **more):
    return {"text": text, "tag": tag, **more}


KIT = {
    "image_info": [{"matched_text_index": 0, "image_url": "./1.png", "image_width": 6}, {"image_url": "2.png"}],
    "text_info": [
        text("What?", "mask"),
        text("A cat.", "no_mask"),
        text("And?", "mask"),
        text("No.", "no_mask", label=0),
    ],
}


def test_erniekit_rows():
    record = erniekit.parse(KIT, HERE)
    assert [m.role for m in record.messages] == ["user", "assistant"] * 2
    assert record.messages[0] == Message(
        "user",
        "<image><image>What?",
        media=(
            Media("./1.png", "some", "$.image_info[0].image_url"),
            Media("2.png", "some", "$.image_info[1].image_url"),
        ),
    )
    assert [m.learn for m in record.messages] == [True, True, True, False]


def test_erniekit_rows_with_a_system_text_and_an_order():
    texts = [text("Be brief.", "mask"), text("", "no_mask"), *KIT["text_info"]]
    order = [("text", 0), ("text", 1), ("text", 2), ("text", 3), ("image", 1), ("image", 0), ("text", 4), ("text", 5)]
    row = {**KIT, "text_info": texts, "is_system": 1, "order": [{"type": t, "index": i} for t, i in order]}
    record = erniekit.parse(row, HERE)
    assert record.messages[0] == Message("system", "Be brief.")
    assert [media.source for media in record.messages[3].media] == ["./1.png", "2.png"]
    parallel = {"type": [t for t, _ in order], "index": [i for _, i in order]}
    assert erniekit.parse({**row, "order": parallel}, HERE) == record


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"text_info": []}, "$.text_info"),
        ({"text_info": [text("a", "mask")]}, "$.text_info"),
        ({"text_info": [text("a", "mask"), text("b", "mask")]}, "$.text_info[1].tag"),
        ({"text_info": [text("a", "masked"), text("b", "no_mask")]}, "$.text_info[0].tag"),
        ({"text_info": [text("<image>", "mask"), text("b", "no_mask")]}, "$.text_info[0].text"),
        ({"image_info": [{"image_url": "a", "matched_text_index": 1}]}, "$.image_info[0].image_url"),
        ({"image_info": [{"image_url": "a", "matched_text_index": 9}]}, "$.image_info[0].matched_text_index"),
        ({"image_info": [{"matched_text_index": 0}]}, "$.image_info[0].image_url"),
        ({"video_info": [{"image_url": "a.mp4"}]}, "$.order"),
        ({"video_info": [{"image_url": "a.mp4"}], "image_info": [], "prefix": "x"}, "$.prefix"),
        (
            {"video_info": [{"image_url": "a.mp4", "extracted_frame_indices": [1]}], "image_info": []},
            "$.video_info[0].extracted_frame_indices",
        ),
        ({"order": [{"type": "text", "index": 0}]}, "$.order"),
    ],
)
def test_erniekit_rows_that_are_refused(change, where):
    with pytest.raises(RowError) as error:
        erniekit.parse({**KIT, **change}, HERE)
    assert error.value.where == where


def test_formats_that_cannot_hold_images_say_so():
    record = erniekit.parse(KIT, HERE)
    assert plugin.ernie_write_record(plugin.Config(), record)["images"] == ["./1.png", "2.png"]
    with pytest.raises(RowError, match="cannot represent images"):
        alpaca.ernie_write_record(alpaca.Config(), record)
