"""Random changes of the images of training rows: settings, and that a run's numbers are a function of seed, epoch, row and image
alone."""

import json
import shutil
from typing import get_args

import numpy as np
import pytest
from erniecore_ernie45_vl.augmentation import PRESETS, RANGES, Name
from erniecore_ernie45_vl.config import VlConfig
from erniecore_media.augment import TRANSFORMS
from erniecore_preference.encoder import PairEncoder
from pydantic import ValidationError

import erniecore
from erniecore.api import ErnieError
from erniecore.api.data import Draw, Origin
from erniecore.cli.app import main
from erniecore.data.collate import collate

#: turns with every image; rows of the fixture have one color each, which geometry would leave as it is
STRONG = "model.image_augment=[{transform: brightness, p: 1.0, range: [0.2, 0.8]}]"


def chosen(value):
    return [transform.model_dump() for transform in VlConfig(image_augment=value).image_augment]


def test_every_transform_has_a_name_and_a_range_that_is_allowed():
    assert set(get_args(Name)) == set(TRANSFORMS)
    for name, allowed in RANGES.items():
        assert allowed.least <= allowed.low <= allowed.high <= allowed.most, name
    assert set(TRANSFORMS) - set(RANGES) == {name for name, kind in TRANSFORMS.items() if not kind.values}


def test_names_presets_and_transforms_are_written_out():
    rotate = {"transform": "rotate", "p": 0.5, "range": (-3.0, 3.0)}
    assert chosen("rotate, grayscale") == [rotate, {"transform": "grayscale", "p": 0.1, "range": None}]
    assert [t["transform"] for t in chosen("document,hue")] == [*PRESETS["document"], "hue"]
    assert [t["transform"] for t in chosen(["photo", {"transform": "blur"}])] == [*PRESETS["photo"], "blur"]
    assert chosen([{"transform": "jpeg", "range": [10, 20], "p": 1}]) == [
        {"transform": "jpeg", "p": 1.0, "range": (10.0, 20.0)}
    ]
    assert chosen(chosen("document")) == chosen("document")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("rotat", "rotate"),
        ([{"transform": "rotate", "range": [3, -3]}], "the smaller one first"),
        ([{"transform": "crop", "range": [0, 0.9]}], "from -0.5 to 0.45"),
        ([{"transform": "invert", "range": [0, 1]}], "has no range"),
        ([{"transform": "rotate", "p": 2}], "less than or equal to 1"),
        ([{"transform": "rotate", "degrees": 2}], "degrees"),
    ],
)
def test_what_is_not_usable_is_an_error(value, says):
    with pytest.raises(ValidationError, match=says):
        VlConfig(image_augment=value)


def settings(home, out, *more):
    return [
        f"model.path={home / 'base'}",
        "method=sft",
        f"data.train={home / 'rows.jsonl'}",
        "data.max_seq_len=96",
        "data.max_drop=0.05",
        "train.batch_size=2",
        "train.accumulation=2",
        "train.learning_rate=0.0005",
        "log.report=false",
        "checkpoint.export=false",
        f"run.out={out}",
        *more,
    ]


def run(home, out, *more):
    erniecore.run(None, settings(home, out, *more), console="none")
    lines = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    return {event: [line["loss"] for line in lines if line["event"] == event] for event in ("step", "eval")}


def weights(out):
    from erniecore_checkpoint.reader import load_checkpoint

    checkpoint = load_checkpoint(max((out / "ckpt").glob("step-*")))
    return {(g, n): array.tobytes() for g, members in checkpoint.tensors.items() for n, array in members.items()}


def test_a_resumed_run_with_other_workers_has_the_same_bits(home, tmp_path):
    out, more = tmp_path / "run", [STRONG, "train.max_steps=4", "checkpoint.every=2"]
    first = run(home, out, *more, "data.workers=0")["step"]
    whole = weights(out)
    shutil.rmtree(out / "ckpt" / "step-00000004")
    (out / "ckpt" / "latest.json").unlink()
    run(home, out, *more, "data.workers=3", "run.resume=must")
    assert weights(out) == whole
    assert run(home, tmp_path / "one", *more, "data.workers=1")["step"] == first
    assert run(home, tmp_path / "off", *more[1:])["step"] != first
    assert (
        run(home, tmp_path / "seed", *more, "run.seed=1", "data.shuffle=false")["step"]
        != (run(home, tmp_path / "other", *more, "run.seed=2", "data.shuffle=false")["step"])
    )


def test_another_setting_is_another_run(home, tmp_path):
    run(home, tmp_path / "run", STRONG, "train.max_steps=1")
    with pytest.raises(ErnieError, match="image_augment"):
        run(home, tmp_path / "run", "train.max_steps=2", "run.resume=must")


#: a rate at which no weight moves
STILL = [
    "train.learning_rate=1e-30",
    "train.weight_decay=0",
    "model.bias_update_rate=0",
    "data.shuffle=false",
    "train.epochs=2",
    "eval.every=3",
]


def test_epochs_differ_and_evaluation_sees_images_as_they_are(home, tmp_path):
    more = [*STILL, f"data.eval={home / 'rows.jsonl'}"]
    plain, changed = run(home, tmp_path / "plain", *more), run(home, tmp_path / "changed", *more, STRONG)
    half = len(plain["step"]) // 2
    assert plain["step"][:half] == plain["step"][half:]
    assert changed["step"][:half] != changed["step"][half:]
    assert all(a != b for a, b in zip(plain["step"], changed["step"], strict=True))
    assert plain["eval"] == changed["eval"]


def test_packing_does_not_change_what_is_drawn(home, tmp_path):
    """One step takes the whole epoch: the same samples in any sequences."""
    more = ["train.max_steps=1", "train.batch_size=24", "train.accumulation=1", STRONG]
    found = [run(home, tmp_path / kind, *more, f"data.packing={kind}")["step"][0] for kind in ("none", "greedy")]
    assert abs(found[0] - found[1]) < 1e-5
    assert abs(found[0] - run(home, tmp_path / "off", *more[:-1], "data.packing=none")["step"][0]) > 1e-4


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["method=grpo", "rewards=length-penalty", "method.max_new_tokens=4"], "model.image_augment"),
        (["method=dpo", "method.reference=precomputed"], "method.reference"),
        (["method=distill", "method.teacher={base}", "method.top_k=4", "method.cache={out}"], "method.cache"),
    ],
)
def test_methods_whose_values_are_those_of_unchanged_images_refuse_it(home, tmp_path, words, key):
    named = [word.format(base=home / "base", out=tmp_path / "cache") for word in words]
    with pytest.raises(ErnieError, match=key):
        erniecore.run(None, settings(home, tmp_path / "run", *named, STRONG), console="none")


def test_both_completions_of_a_pair_have_the_same_image(home, tmp_path):
    """It is there once, with one draw; a pair at another line, or in another epoch, has another."""
    config = VlConfig(path=str(home / "base"), image_augment="document")
    from erniecore_ernie45_vl.templating import read_vl_tokenizer
    from erniecore_formats.preference import parse

    tokenizer = read_vl_tokenizer(home / "base", config)
    row = {"prompt": "<image>What color is it?", "images": ["img/1.png"], "chosen": "red", "rejected": "blue"}
    encoder = PairEncoder(tokenizer, 96)
    here, there = (encoder.encode(parse(row, Origin(str(home / "rows.jsonl"), line)))[0] for line in (3, 4))
    reader = tokenizer.chat_template
    assert len(here.media) == len(reader.changes(here, Draw(0, 0))) == 1
    draws = [(here, Draw(0, 0)), (there, Draw(0, 0)), (here, Draw(0, 1)), (here, Draw(1, 0))]
    pixels = [reader.complete(collate([[s]], pad_id=0), [[s]], draw=d).inputs["pixel_values"] for s, d in draws]
    for i, one in enumerate(pixels):
        assert one.shape == pixels[0].shape
        assert not any(np.array_equal(one, other) for other in pixels[:i])
    plain = reader.complete(collate([[here]], pad_id=0), [[here]]).inputs["pixel_values"]
    assert not np.array_equal(plain, pixels[0])
    assert reader.changes(here, None) == [()]


def shown(capsys, home, *arguments):
    code = main(["data", *arguments[:1], str(home / "rows.jsonl"), "--model", str(home / "base"), *arguments[1:]])
    found = capsys.readouterr()
    return code, found.out, found.err


def test_the_command_shows_images_as_an_epoch_has_them(capsys, home, tmp_path):
    def files(name, *more):
        code, out, _ = shown(capsys, home, "show", "--line", "2", "--images", str(tmp_path / name), "--json", *more)
        assert code == 0
        [media] = json.loads(out)[0]["media"]
        from PIL import Image

        with Image.open(media["files"][0]) as image:
            return media, np.asarray(image).copy()

    plain, before = files("plain")
    first, changed = files("first", STRONG, "--epoch", "1")
    _, later = files("second", STRONG, "--epoch", "2")
    assert "changes" not in plain
    assert first["changes"][0].startswith("brightness 0.")
    factor = float(first["changes"][0].split()[1])
    np.testing.assert_allclose(changed, before * factor, atol=1.5)
    assert (changed != later).any()
    _, again = files("again", STRONG, "--epoch", "1")
    np.testing.assert_array_equal(again, changed)
    code, out, _ = shown(capsys, home, "show", "--line", "2", STRONG, "--epoch", "1")
    assert code == 0
    assert f", {first['changes'][0]}\n" in out


def test_an_epoch_without_changes_is_refused(capsys, home):
    code, _, err = shown(capsys, home, "show", "--epoch", "1")
    assert code == 2
    assert "model.image_augment" in err


def test_the_command_counts_the_changes_of_the_first_epoch(capsys, home):
    half = "model.image_augment=rotate,jpeg"
    code, out, _ = shown(capsys, home, "check", half, "--max-drop", "0.05", "--json")
    assert code == 0
    facts = json.loads(out)["changes"]
    assert facts["images"] == 18
    assert 0 < facts["changed"] < 18
    assert set(facts["transforms"]) == {"rotate", "jpeg"}
    _, out, _ = shown(capsys, home, "check", half, "--max-drop", "0.05")
    assert f"{facts['changed']} of 18 images change in the first epoch" in out
