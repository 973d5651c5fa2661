"""Rows with images become samples and batches: tokens, labels, positions, pixels, truncation, packing, refusals."""

import base64
import hashlib
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from erniecore_ernie45.templating import choose_template
from erniecore_ernie45_vl import prompts
from erniecore_ernie45_vl.config import VlConfig
from erniecore_ernie45_vl.images import read_images
from erniecore_ernie45_vl.preprocessing import Preprocessing
from erniecore_ernie45_vl.seeing import END, PLACEHOLDER, START
from erniecore_ernie45_vl.templating import TEMPLATES, VlTokenizer, read_vl_tokenizer, seeing
from erniecore_formats import messages as rows
from erniecore_sft.encoder import SftEncoder
from erniecore_text.training import train
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from erniecore.api import DataError, RowError
from erniecore.api.data import Conversation, MediaReader, Message, Origin
from erniecore.api.method import IGNORE
from erniecore.data.collate import collate

SIZES = {"a.png": (56, 56), "wide.png": (112, 56), "tall.png": (40, 130)}
TEXTS = ["What is it? A red square, a blue one.", "User: Assistant: 1: Video think", *map(str, range(40))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for name, (width, height) in SIZES.items():
        Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8)).save(folder / name)
    return folder


@pytest.fixture(scope="module")
def plain(folder):
    """A tokenizer with tokens for images."""
    made = train([*TEXTS, *TEXTS], 325)
    made.save(folder)
    size = made.vocab_size
    (folder / "added_tokens.json").write_text(json.dumps({PLACEHOLDER: size, START: size + 1, END: size + 2}))
    return lambda config=None: read_vl_tokenizer(folder, config or VlConfig())


@pytest.fixture(scope="module")
def tokenizer(plain):
    return plain()


def record(folder, *turns, images=()):
    listed = [{"role": role, "content": text} for role, text in turns]
    return rows.parse({"messages": listed, "images": list(images)}, Origin(str(folder / "rows.jsonl"), 1))


def ask(text="<image>What is it?", answer="red"):
    return ("user", text), ("assistant", answer)


def encode(tokenizer, record, limit=1000, too_long="truncate"):
    return list(SftEncoder(tokenizer, limit, too_long).encode(record))


def test_the_text_is_the_template_s_with_a_placeholder_for_each_token(tokenizer, folder):
    said = record(folder, *ask("<image>What<image> is it?"), images=["a.png", "wide.png"])
    parts = [
        {"type": "image"},
        {"type": "text", "text": "What"},
        {"type": "image"},
        {"type": "text", "text": " is it?"},
    ]
    expected = prompts.segments([{"role": "user", "content": parts}], {"image": [4, 8]})
    ids = [i for part in tokenizer.encode_segments(expected) for i in part]
    (sample,) = encode(tokenizer, said)
    assert sample.input_ids[: len(ids)].tolist() == ids
    assert isinstance(tokenizer.chat_template, MediaReader)
    text = tokenizer.chat_template.render(said.messages[:1], add_generation_prompt=False)
    shown = "".join(part.text for part in expected)
    assert shown.startswith(text)
    assert text.endswith(" is it?")


def test_only_answers_are_learned(tokenizer, folder):
    (sample,) = encode(tokenizer, record(folder, *ask(), images=["a.png"]))
    learned = [int(i) for i in sample.labels if i != IGNORE]
    assert tokenizer.decode(learned, skip_special=False) == "red</s>"
    inside = np.isin(sample.input_ids[1:], [tokenizer.special_tokens[t] for t in (PLACEHOLDER, START, END)])
    assert (sample.labels[:-1][inside] == IGNORE).all()


def test_a_text_that_looks_like_an_image_is_a_text(tokenizer, folder):
    (sample,) = encode(tokenizer, record(folder, *ask(f"<image>{START}{PLACEHOLDER}"), images=["a.png"]))
    assert (sample.input_ids == tokenizer.special_tokens[PLACEHOLDER]).sum() == 4
    (sample,) = encode(tokenizer, record(folder, *ask("<image>What?")))
    assert not sample.media
    assert tokenizer.special_tokens[PLACEHOLDER] not in sample.input_ids


def batch_of(tokenizer, *lists):
    laid = [list(one) for one in lists]
    return tokenizer.chat_template.complete(collate(laid, pad_id=0), laid)


def test_pixels_and_positions(tokenizer, folder):
    one = encode(tokenizer, record(folder, *ask(), images=["tall.png"]))
    two = encode(tokenizer, record(folder, *ask("<image><image>?"), images=["a.png", "wide.png"]))
    text = encode(tokenizer, record(folder, *ask("What?")))
    packed = batch_of(tokenizer, [*one, *text, *two])
    expected = read_images([folder / name for name in ("tall.png", "a.png", "wide.png")])
    np.testing.assert_array_equal(packed.inputs["pixel_values"], expected.values)
    np.testing.assert_array_equal(packed.inputs["image_grid_thw"], expected.grids)
    start = 0
    for sample in (*one, *text, *two):
        alone = batch_of(tokenizer, [sample])
        positions = packed.position_ids[0, start : start + len(sample)]
        if sample.media:
            np.testing.assert_array_equal(positions, alone.position_ids[0])
        else:
            assert not alone.inputs
            np.testing.assert_array_equal(positions, np.arange(len(sample))[:, None].repeat(3, 1))
        start += len(sample)
    kinds = packed.inputs["mm_token_type_ids"]
    assert kinds.sum() == sum(expected.tokens)
    around = packed.inputs["moe_mm_token_type_ids"].sum() - kinds.sum()
    assert around == 2 * 3


def test_markers_of_images_in_a_completion_are_text(tokenizer, folder):
    """As when they were generated: they pass the text experts."""
    (sample,) = encode(tokenizer, record(folder, *ask(), images=["a.png"]))
    special, n = tokenizer.special_tokens, len(sample)
    said = np.array([special[START], 9, special[END], special[START], special[PLACEHOLDER], special[END]])
    longer = replace(
        sample,
        input_ids=np.concatenate([sample.input_ids, said]),
        labels=np.concatenate([sample.labels, said]),
        position_ids=np.arange(n + len(said)),
        end_rows=np.full(n + len(said), n + len(said), np.int32),
    )
    inputs, alone = batch_of(tokenizer, [longer]).inputs, batch_of(tokenizer, [sample]).inputs
    for name in ("mm_token_type_ids", "moe_mm_token_type_ids"):
        np.testing.assert_array_equal(inputs[name][:, :n], alone[name])
        assert not inputs[name][:, n:].any()


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_however_it_is_cut_images_are_whole_and_something_is_learned(tokenizer, folder, data):
    turns, images = [], []
    for _ in range(data.draw(st.integers(1, 4))):
        here = data.draw(st.lists(st.sampled_from(sorted(SIZES)), max_size=2))
        turns += ask(
            "<image>" * len(here) + "What? " * data.draw(st.integers(1, 12)), "red " * data.draw(st.integers(1, 9))
        )
        images += here
    limit, too_long = data.draw(st.integers(8, 200)), data.draw(st.sampled_from(["drop", "turns", "truncate"]))
    samples, refused = [], None
    try:
        samples = encode(tokenizer, record(folder, *turns, images=images), limit, too_long)
    except RowError as error:
        refused = error.code
    assert refused in (None, "ERN-D044")
    assert bool(samples) == (refused is None)
    for sample in samples:
        ids = sample.input_ids
        grids = [json.loads(text)["grid"] for text in sample.media]
        assert len(sample) <= limit
        assert (sample.labels != IGNORE).any()
        count = [(ids == tokenizer.special_tokens[token]).sum() for token in (START, END, PLACEHOLDER)]
        assert count == [len(grids), len(grids), sum(t * h * w // 4 for t, h, w in grids)]
        batch_of(tokenizer, [sample])


def test_copies_in_other_processes_make_the_same_batches(tokenizer, folder):
    said = record(folder, *ask(), images=["a.png"])
    copy = pickle.loads(pickle.dumps(tokenizer))
    one, two = (batch_of(t, encode(t, said)) for t in (tokenizer, copy))
    for name, values in one.inputs.items():
        np.testing.assert_array_equal(two.inputs[name], values)


def test_an_image_that_changed_is_refused(tokenizer, folder):
    Image.new("RGB", (56, 56)).save(folder / "late.png")
    samples = encode(tokenizer, record(folder, *ask(), images=["late.png"]))
    digest = json.loads(samples[0].media[0])["sha256"]
    assert digest == hashlib.sha256((folder / "late.png").read_bytes()).hexdigest()
    Image.new("RGB", (56, 56), "red").save(folder / "late.png")
    with pytest.raises(DataError, match="changed since") as error:
        batch_of(tokenizer, samples)
    assert error.value.where.endswith("rows.jsonl:1")


def test_a_data_url(tokenizer, folder):
    url = "data:image/png;base64," + base64.b64encode((folder / "a.png").read_bytes()).decode()
    one, two = (batch_of(tokenizer, encode(tokenizer, record(folder, *ask(), images=[i]))) for i in (url, "a.png"))
    np.testing.assert_array_equal(one.inputs["pixel_values"], two.inputs["pixel_values"])


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("none.png", "does not exist"),
        ("tokenizer.model", "not an image"),
        ("../x.png", "outside"),
        ("http://a/b", "URLs"),
    ],
)
def test_an_image_that_is_not_read_is_named(image, message, tokenizer, folder):
    said = record(folder, *ask("<image><image>?"), images=["a.png", image])
    with pytest.raises(RowError, match=message) as error:
        encode(tokenizer, said)
    assert error.value.where == "$.images[1]"


def test_settings_of_sizes_and_roots(plain, folder, tmp_path):
    Image.new("RGB", (200, 200)).save(tmp_path / "far.png")
    said = record(folder, *ask(), images=[str(tmp_path / "far.png")])
    config = VlConfig(media_roots=(str(tmp_path),), image_max_pixels=84 * 84)
    (sample,) = encode(plain(config), said)
    assert json.loads(sample.media[0])["grid"] == [1, 6, 6]
    with pytest.raises(RowError, match="too many pixels"):
        encode(plain(VlConfig(media_roots=(str(tmp_path),), image_most_pixels=100)), said)


def test_a_tokenizer_without_these_tokens(folder):
    made = train([*TEXTS, *TEXTS], 325)
    bare = VlTokenizer(made.model, made.files, choose_template("ernie45-vl", folder, TEMPLATES))
    seeing(bare, VlConfig(), Preprocessing())
    with pytest.raises(RowError, match="no token for images"):
        encode(bare, record(folder, *ask(), images=["a.png"]))
    (sample,) = encode(bare, Conversation((Message("user", "What?"), Message("assistant", "red"))))
    assert sample.media == ()


def test_who_does_not_give_images_to_the_model_refuses_their_rows(tokenizer, folder):
    from erniecore_eval.items import read_items

    from erniecore.api.rows import Source, encode, resolve

    turns = [{"role": role, "content": text} for role, text in ask()]
    file = folder / "asked.jsonl"
    file.write_text(json.dumps({"messages": turns, "images": ["a.png"]}) + "\n")
    sources = resolve([Source(path=str(file))])
    learned, _ = encode(sources, SftEncoder(tokenizer, 99))
    assert len(learned[0].media) == 1
    blind = SftEncoder(tokenizer, 99)
    blind.media = None
    none, statistics = encode(sources, blind)
    assert (len(none), statistics.total("dropped")) == (0, 1)
    with pytest.raises(DataError, match="no row can be evaluated") as error:
        read_items([Source(path=str(file))], blind)
    assert "$.images[0]" in error.value.found
    items, _ = read_items([Source(path=str(file))], SftEncoder(tokenizer, 99))
    assert items[0].samples[0].media == learned[0].media
