"""Rows of parts become tokens, and a model makes its way through them as it learned them."""

import json

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie5.audio_tokens import AudioTokens
from erniecore_ernie5.image_tokens import ImageTokens
from erniecore_ernie5.sequence import DRAWN, FRAME, READ, Markers, MediaTokens, joined
from erniecore_media import MediaError
from erniecore_next_group.encoder import Row
from erniecore_next_group.files import png, read_audio, read_image, wav
from erniecore_next_group.history import corrupted, images_of
from erniecore_next_group.made import image_of, motifs, write
from erniecore_next_group.rows import parse

from erniecore.api import RowError
from erniecore.api.data import Origin
from erniecore.api.method import Sample
from erniecore.api.training import collate

MEDIA = MediaTokens(ImageTokens(16, 4, (1, 2, 4)), AudioTokens(), Markers(6, 7, 8, 9))


class Words:
    bos_id, eos_id = 1, 2

    def encode(self, text):
        return [10 + len(word) for word in text.split()]


def row():
    return Row(MEDIA, Words(), ".")


def test_files_come_back_as_they_were(tmp_path):
    pixels, audio = image_of("seven", "cyan", "top right"), MEDIA.audio
    (tmp_path / "a.png").write_bytes(png(pixels))
    assert (read_image("a.png", [tmp_path], MEDIA.image) == pixels).all()
    codes = np.array([[audio.code(7, True), audio.code(19), 0]] * 3, np.int16)
    (tmp_path / "a.wav").write_bytes(wav(audio.decode(codes), audio))
    assert (audio.encode(read_audio("a.wav", [tmp_path], audio)) == codes).all()


def test_other_sizes_and_rates_are_refused(tmp_path):
    (tmp_path / "a.png").write_bytes(png(np.zeros((8, 16, 3), np.uint8)))
    with pytest.raises(MediaError, match="another size"):
        read_image("a.png", [tmp_path], MEDIA.image)
    (tmp_path / "a.wav").write_bytes(wav(np.zeros(100, np.float32), AudioTokens(sample_rate=16000)))
    with pytest.raises(MediaError, match="not a sound"):
        read_audio("a.wav", [tmp_path], MEDIA.audio)


def test_an_image_that_is_drawn_is_predicted_then_read():
    one = row()
    one.image(MEDIA.image.values(image_of("circle", "red", "top left")), True)
    tokens = joined(one.tokens)
    assert (tokens.kinds == DRAWN).sum() == 21
    assert (tokens.kinds == READ).sum() == 16
    assert (tokens.bits != 0).any(axis=1).sum() == 21
    other = row()
    other.image(MEDIA.image.values(image_of("circle", "red", "top left")), False)
    given = joined(other.tokens)
    assert not given.bits.any()
    assert (given.axes[-1] == tokens.axes[-1]).all()


def test_each_frame_is_predicted_by_the_token_before_it_and_the_last_says_the_end():
    codes = np.array([[3, 0, 0], [5, 1, 0]], np.int16)
    one = row()
    one.audio(codes, True)
    tokens = joined(one.tokens)
    assert tokens.next_codes[1].tolist() == [4, 1, 1]
    assert tokens.next_codes[2].tolist() == [6, 2, 1]
    assert tokens.next_codes[3].tolist() == [MEDIA.end_code, 0, 0]
    assert (tokens.codes[tokens.kinds == FRAME] == codes + 1).all()


def test_sound_that_goes_on_is_one_sound():
    codes = np.array([[3, 0, 0]] * 2, np.int16)
    one = row()
    one.audio(codes, False, ends=False)
    one.audio(codes, True, begins=False)
    tokens = joined(one.tokens)
    assert tokens.ids.tolist() == [1, 8, 0, 0, 0, 0, 9]
    assert tokens.next_codes[:, 0].tolist() == [0, 0, 0, 4, 4, MEDIA.end_code, 0]


def batch():
    samples = []
    for name in ("circle", "two"):
        one = row()
        one.image(MEDIA.image.values(image_of(name, "red", "top left")), True)
        tokens = joined(one.tokens)
        n = tokens.size
        samples.append(Sample(tokens.ids, np.full(n, 2), np.arange(n), np.full(n, n, np.int32), fields=tokens.fields))
    return samples


def test_flips_depend_on_seed_and_image_alone():
    samples = batch()
    both, packed = collate([[s] for s in samples], pad_id=0), collate([samples[::-1]], pad_id=0)
    assert len(list(images_of(both, MEDIA.image))) == len(list(images_of(packed, MEDIA.image))) == 2
    found, other = (corrupted(one, MEDIA.image, 0.4, 5).fields for one in (both, packed))
    n = len(samples[0])
    assert (found["values"][0] == other["values"][0, n:]).all()
    assert (found["bits"][1] == other["bits"][0, :n]).all()
    assert (found["values"] != both.fields["values"]).any()
    assert (corrupted(both, MEDIA.image, 0.0, 5).fields["bits"] == both.fields["bits"]).all()
    read = both.fields["kinds"] == READ
    assert (found["values"][read] == both.fields["values"][read]).all()


def test_made_data_hold_out_what_training_has_not(tmp_path):
    counts = write(tmp_path, 0, 40, MEDIA.audio)
    rows = {name: (tmp_path / f"{name}.jsonl").read_text().splitlines() for name in counts}
    assert {name: len(lines) for name, lines in rows.items()} == counts
    words = {}
    for name, lines in rows.items():
        parts = [part for line in lines for side in json.loads(line).values() for part in side]
        words[name] = {part["text"] for part in parts if "text" in part}
    assert not words["train"] & words["held-out"]
    train, others = motifs(0, 40, MEDIA.audio)
    assert not {x.tobytes() for x in train} & {x.tobytes() for x in others}


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"given": []}, "$.made"),
        ({"made": []}, "$.made"),
        ({"made": [{"sound": "a"}]}, "$.made[0]"),
        ({"made": [{"text": 3}]}, "$.made[0].text"),
        ({"made": [{"image": " "}]}, "$.made[0].image"),
        ({"givn": [], "made": [{"text": "a"}]}, "$.givn"),
    ],
)
def test_what_is_wrong_in_a_row_is_named(wrong, where):
    with pytest.raises(RowError) as error:
        parse(wrong, Origin("rows.jsonl", 1))
    assert error.value.where == where


@pytest.fixture(scope="module")
def maker_parts():
    from erniecore_ernie5.architecture import Ernie5Architecture
    from erniecore_ernie5.config import Ernie5Config
    from erniecore_ernie5.model import Ernie5ForCausalLM

    sizes = {
        **{
            "model_type": "ernie5",
            "vocab_size": 40,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 4,
        },
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "rope_theta": 10000.0},
        **{"initializer_range": 0.3, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16},
        **{"moe_num_shared_experts": 1, "moe_layer_start_index": 1, "image_size": 16, "image_patch": 4},
        **{"image_scales": [1, 2, 4], "audio_sample_rate": 8000, "audio_frame": 640, "audio_levels": 3},
        **{"audio_notes": 36, "image_start_token": "a", "image_end_token": "b", "audio_start_token": "c"},
        "audio_end_token": "d",
    }
    paddle.seed(3)
    model = Ernie5ForCausalLM(Ernie5Architecture.parse(sizes), Ernie5Config())
    model.eval()
    return model


class Tokenizer(Words):
    media = MEDIA


def hidden_of(model, tokens):
    from erniecore_next_group.objective import INPUTS

    inputs = {name: paddle.to_tensor(getattr(tokens, name)[None]) for name in INPUTS}
    with paddle.no_grad():
        return model.features(paddle.to_tensor(tokens.ids[None]), **inputs)


def test_what_is_drawn_is_what_the_model_predicts_of_it_in_training(maker_parts):
    from erniecore_next_group.generation import started

    maker = started(maker_parts, Tokenizer())
    maker.text([12, 13])
    known = maker.draw()
    one = row()
    one._text([12, 13], False)
    one.image(MEDIA.image.rounded(known), True)
    tokens = joined(one.tokens)
    drawn = tokens.kinds == DRAWN
    odds = maker_parts.bit_logits(hidden_of(maker_parts, tokens).hidden).numpy()[0][drawn]
    # the first scale has no history: what was drawn there stands in any pyramid of the image
    first = MEDIA.image.added(MEDIA.image.nothing(), 0, np.where(odds[:1] > 0, 1, -1))
    assert np.isfinite(known).all()
    assert (np.sign(first[0, 0]) == np.where(odds[0] > 0, 1, -1)).all()
    assert maker.at == tokens.axes[-1, 0] + 1


def test_frames_are_what_the_model_predicts_with_their_codes_given(maker_parts):
    from erniecore_next_group.generation import started

    maker = started(maker_parts, Tokenizer())
    maker.text([12])
    codes = maker.frames(5)
    assert len(codes)
    one = row()
    one._text([12], False)
    one.audio(codes, True)
    tokens = joined(one.tokens)
    levels = hidden_of(maker_parts, tokens).levels
    where = np.nonzero(tokens.next_codes[:, 1])[0]
    for level, hidden in enumerate(levels):
        best = maker_parts.code_logits(level, hidden).numpy()[0].argmax(axis=-1)
        assert (best[where] == codes[:, level]).all()
