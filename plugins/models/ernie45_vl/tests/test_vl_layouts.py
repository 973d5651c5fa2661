"""Rows with images on two ranks: every layout gives the losses and weights of one process, also where a rank has texts alone."""

import json
from pathlib import Path

import numpy as np
import pytest
from erniecore_checkpoint.reader import load_checkpoint
from erniecore_conformance.processes import on_ranks
from PIL import Image
from small_videos import video

import erniecore

HELPERS = Path(__file__).with_name("layout_runs.py")
ALL = "model.train=text,vision,resampler,vision_experts"
DATA = ["parallel.data=2", "train.accumulation=1"]
SHARDING = ["parallel.sharding=2", "train.accumulation=1"]
LAYOUTS = {
    "data": DATA,
    "stage1": SHARDING,
    "stage2": [*SHARDING, "parallel.sharding_stage=2"],
    "stage3": [*SHARDING, "parallel.sharding_stage=3"],
    "tensor": ["parallel.tensor=2"],
    "expert": [*DATA, "parallel.expert=2"],
    "pipeline": ["parallel.pipeline=2"],
    "context": ["parallel.context=2"],
    "sequence": ["parallel.tensor=2", "parallel.sequence=true"],
    "stage3-expert": [*SHARDING, "parallel.sharding_stage=3", "parallel.expert=2"],
}
#: of four ranks
PRODUCTS = {
    "tensor-data": [*DATA, "parallel.tensor=2"],
    "pipeline-tensor": ["parallel.pipeline=2", "parallel.tensor=2"],
    "pipeline-expert": [*DATA, "parallel.pipeline=2", "parallel.expert=2"],
    "stage3-tensor": [*SHARDING, "parallel.sharding_stage=3", "parallel.tensor=2"],
    "context": ["parallel.context=4"],
    "context-data": [*DATA, "parallel.context=2"],
    "context-expert": [*DATA, "parallel.context=2", "parallel.expert=2"],
    "context-stage3": [*SHARDING, "parallel.sharding_stage=3", "parallel.context=2"],
    "context-tensor": ["parallel.context=2", "parallel.tensor=2"],
    "context-sequence": ["parallel.context=2", "parallel.tensor=2", "parallel.sequence=true"],
    "context-pipeline": ["parallel.context=2", "parallel.pipeline=2"],
    "sequence-pipeline": ["parallel.tensor=2", "parallel.sequence=true", "parallel.pipeline=2"],
}


#: (what is trained, layout)
RUNS = [
    *(("text", name) for name in LAYOUTS),
    *(("all", name) for name in ("data", "stage3", "tensor", "expert", "pipeline", "context", "sequence")),
]


def words(home, out, *more, model="base"):
    return [
        f"model.path={home / model}",
        "method=sft",
        f"data.train={home / 'rows.jsonl'}",
        "data.max_seq_len=96",
        "data.max_drop=0.05",
        "data.packing=none",
        "train.batch_size=1",
        "train.accumulation=2",
        "train.learning_rate=0.0005",
        "train.max_steps=4",
        "log.report=false",
        "checkpoint.export=false",
        f"run.out={out}",
        *more,
    ]


#: ranks have parts of each row
CUT = {name: ["parallel.name=hybrid", *LAYOUTS[name]] for name in ("context", "sequence")}
#: several images in a row, which lie in several parts of it, and losses of the routers
PACKED = [
    "data.packing=greedy",
    "data.max_seq_len=64",
    "model.router_aux_loss=0.01",
    "model.router_z_loss=0.001",
    "model.train=text,vision,resampler,vision_experts",
]
AUGMENT = "model.image_augment=[{transform: brightness, p: 1.0, range: [0.2, 0.8]}]"
#: steps of eight rows; dealt out in order, one of two ranks would get every image
UNEVEN = ["data.shuffle=false", "train.batch_size=2", "train.max_steps=2", "checkpoint.every=2"]


def uneven(home):
    """Two rows with images, two with texts, and so on; every second image is four times as large."""
    for i, side in enumerate((112, 56)):
        Image.new("RGB", (side, side), (200, 20 * i, 20)).save(home / "img" / f"side{side}.png")
    with (home / "uneven.jsonl").open("w") as file:
        for i in range(16):
            row = {"messages": [{"role": "user", "content": "Say red."}, {"role": "assistant", "content": "red"}]}
            if i % 4 < 2:
                row["messages"][0]["content"] = "<image>What color is it?"
                row["images"] = [f"img/side{(112, 56)[i % 2]}.png"]
            file.write(json.dumps(row) + "\n")
    return f"data.train={home / 'uneven.jsonl'}"


def videos(home):
    """Videos of two lengths, a list of frames, an image and a text, in turns."""
    for i in range(2):
        (home / "img" / f"{i}.mp4").write_bytes(video(10 + 5 * i, size=(56, 56)))
    kinds = [
        {"videos": ["img/0.mp4"]},
        {"videos": ["img/1.mp4"]},
        {"videos": [["img/1.png", "img/5.png", "img/3.png"]]},
    ]
    with (home / "videos.jsonl").open("w") as file:
        for i in range(20):
            media = [*kinds, {"images": ["img/1.png"]}, {}][i % 5]
            marker = "".join({"videos": "<video>", "images": "<image>"}[name] for name in media)
            turns = [{"role": "user", "content": f"{marker}Say red."}, {"role": "assistant", "content": "red"}]
            file.write(json.dumps({"messages": turns, **media}) + "\n")
    return [f"data.train={home / 'videos.jsonl'}", "model.video_min_pixels=3136", "model.video_min_frames=2"]


@pytest.fixture(scope="module")
def alone(home, tmp_path_factory):
    place = tmp_path_factory.mktemp("alone")
    erniecore.run(None, words(home, place / "uneven", *UNEVEN, uneven(home), "train.accumulation=4"), console="none")
    erniecore.run(None, words(home, place / "videos", *videos(home), ALL), console="none")
    erniecore.run(None, words(home, place / "packed", *PACKED), console="none")
    erniecore.run(None, words(home, place / "augmented", AUGMENT), console="none")
    for name, parts in (("text", []), ("all", [ALL])):
        erniecore.run(None, words(home, place / name, *parts), console="none")
    erniecore.run(None, words(home, place / "deep", ALL, model="deep"), console="none")
    return place


@pytest.fixture(scope="module")
def together(home, tmp_path_factory):
    """(directory of the runs, name -> error, name -> patches of micro-batches by rank): all of them in one launch."""
    place = tmp_path_factory.mktemp("together")
    cases = {
        f"{name}-{run}": words(home, place / f"{name}-{run}", "parallel.name=hybrid", *layout, *parts)
        for name, layout in LAYOUTS.items()
        for run, parts in (("text", []), ("all", [ALL]))
        if (run, name) in RUNS
    }
    cases["uneven"] = words(home, place / "uneven", *UNEVEN, uneven(home), "parallel.name=hybrid", "parallel.data=2")
    chunks = ["parallel.name=hybrid", "parallel.pipeline=2", "parallel.chunks=2"]
    cases["chunks"] = words(home, place / "chunks", *chunks, ALL, model="deep")
    cases["videos"] = words(home, place / "videos", *videos(home), ALL, "parallel.name=hybrid", *DATA)
    for name, layout in CUT.items():
        cases[f"videos-{name}"] = words(home, place / f"videos-{name}", *videos(home), ALL, *layout)
        cases[f"packed-{name}"] = words(home, place / f"packed-{name}", *PACKED, *layout)
    cases["augmented"] = words(home, place / "augmented", AUGMENT, "parallel.name=hybrid", *DATA)
    first, second = on_ranks(2, f"{HELPERS}:runs", list(cases.values()), limit=900.0)
    errors = {name: error for name, (error, _) in zip(cases, first, strict=True)}
    return place, errors, dict(zip(cases, ((a, b) for (_, a), (_, b) in zip(first, second, strict=True)), strict=True))


@pytest.fixture(scope="module")
def four(home, tmp_path_factory):
    """The same of four ranks: directory of the runs, name -> error."""
    place = tmp_path_factory.mktemp("four")
    cases = {name: words(home, place / name, "parallel.name=hybrid", *layout, ALL) for name, layout in PRODUCTS.items()}
    found = on_ranks(4, f"{HELPERS}:runs", list(cases.values()), limit=900.0)
    return place, {name: error for name, (error, _) in zip(cases, found[0], strict=True)}


def read(out):
    lines = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["event"] == "step"]
    return losses, load_checkpoint(max((out / "ckpt").glob("step-*"))).tensors["model"]


def same(out, expected):
    """Losses within 1e-6, weights within 1e-5."""
    (losses, weights), (wanted, one) = read(out), read(expected)
    np.testing.assert_allclose(losses, wanted, rtol=1e-6)
    assert weights.entries.keys() == one.entries.keys()
    assert max(float(np.abs(weights[name] - one[name]).max()) for name in one) <= 1e-5


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize(("run", "layout"), RUNS)
def test_layouts_give_the_numbers_of_one_process(alone, together, layout, run):
    place, errors, _ = together
    assert errors[f"{layout}-{run}"] == ""
    same(place / f"{layout}-{run}", alone / run)


@pytest.mark.multiproc
@pytest.mark.slow
def test_stages_in_two_chunks_give_the_numbers_of_one_process(alone, together):
    place, errors, _ = together
    assert errors["chunks"] == ""
    same(place / "chunks", alone / "deep")


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize("layout", PRODUCTS)
def test_layouts_of_four_ranks_give_the_numbers_of_one_process(alone, four, layout):
    place, errors = four
    assert errors[layout] == ""
    same(place / layout, alone / "all")


@pytest.mark.multiproc
@pytest.mark.slow
def test_ranks_have_as_many_patches_in_every_micro_batch(alone, together):
    """Whatever the order of the rows, and with the numbers of one process."""
    place, errors, patches = together
    assert errors["uneven"] == ""
    first, second = patches["uneven"]
    assert first == second == [64, 16] * 2  # two images of each size in a step; two ranks, two micro-batches
    same(place / "uneven", alone / "uneven")


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize("name", ["videos", *(f"videos-{name}" for name in CUT)])
def test_videos_on_two_ranks_give_the_numbers_of_one_process(alone, together, name):
    place, errors, _ = together
    assert errors[name] == ""
    same(place / name, alone / "videos")


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize("name", CUT)
def test_parts_of_packed_rows_give_the_numbers_of_one_process(alone, together, name):
    place, errors, _ = together
    assert errors[f"packed-{name}"] == ""
    same(place / f"packed-{name}", alone / "packed")


@pytest.mark.multiproc
@pytest.mark.slow
def test_two_ranks_change_images_at_random_as_one_process_does(alone, together):
    place, errors, _ = together
    assert errors["augmented"] == ""
    same(place / "augmented", alone / "augmented")
    assert read(alone / "augmented")[0] != read(alone / "text")[0]
