"""Pre-training from text and from token files: continuing bit for bit, one order for every split, what is refused."""

import json
import random
import shutil
from pathlib import Path

import pytest

import erniecore
from erniecore.api.tensors import read_tensors
from erniecore.errors import DataError, Exit

RECIPE = Path(__file__).parents[2] / "examples" / "pretrain.yaml"
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "dogs",
    "plus",
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "7",
    "8",
    "9",
    "0",
]


def write_texts(path, count, seed):
    rng = random.Random(seed)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(3, 60))) for _ in range(count)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def texts(home, tmp_path_factory, run_ernie):
    """``one.txt`` and ``two.txt``, and token files ``one`` and ``two`` of them."""
    place = tmp_path_factory.mktemp("texts")
    for seed, name in enumerate(("one", "two")):
        path = write_texts(place / f"{name}.txt", 40, seed)
        made = run_ernie("data", "build", path, "--tokenizer", home / "tok", "--out", place / name)
        assert made.code == 0, made.err
    return place


def tokens(texts, **more):
    """Settings of a blend of both token files, with a held-out tail."""
    sources = [{"path": str(texts / "one.idx"), "weight": 1.0}, {"path": str(texts / "two.idx"), "weight": 3.0}]
    return {
        "method__name": "pt",
        "data__train": json.dumps(sources),
        "data__mix": "weighted",
        "data__max_seq_len": 32,
        "data__eval_fraction": 0.1,
        **more,
    }


def text(texts, **more):
    return {"method__name": "pt", "data__train": texts / "one.txt", "data__eval_fraction": 0.2, **more}


SOURCES = {"tokens": tokens, "text": text}
FULL = {"checkpoint__every": 3, "train__ema": 0.9, "train__accumulation": 2, "train__schedule": "wsd"}


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_killed_run_continues_bit_for_bit(runner, texts, source):
    options = SOURCES[source](texts, **FULL)
    runner.complete("straight", **options)
    for step in (2, 5):
        runner.kill_at(step, "killed", **options)
    runner.complete("killed", **options)
    assert runner.curve("killed") == runner.curve("straight")
    assert runner.tensors(8, "killed") == runner.tensors(8, "straight")
    assert runner.events("eval", "killed")[-1]["loss"] == runner.events("eval", "straight")[-1]["loss"]


@pytest.mark.parametrize("source", SOURCES)
def test_the_split_into_micro_batches_changes_no_sample(runner, texts, source):
    options = SOURCES[source](texts)
    runner.run("wide", **options, train__batch_size=4)
    runner.run("narrow", **options, train__batch_size=1, train__accumulation=4)
    wide, narrow = runner.curve("wide"), runner.curve("narrow")
    for step, (loss, norm, rate, count) in wide.items():
        assert narrow[step][0] == pytest.approx(loss, rel=1e-5)
        assert narrow[step][1] == pytest.approx(norm, rel=1e-4)
        assert narrow[step][2:] == (rate, count)


@pytest.mark.slow
def test_the_number_of_workers_changes_nothing(runner, texts):
    runner.complete("none", **text(texts))
    runner.complete("two", **text(texts, data__workers=2))
    assert runner.curve("two") == runner.curve("none")
    assert runner.tensors(8, "two") == runner.tensors(8, "none")


def test_it_goes_on_over_the_end_of_an_epoch(runner, texts):
    options = tokens(texts, data__max_seq_len=64, train__batch_size=16, train__max_steps=7)
    runner.run("straight", **options)
    runner.run("broken", **options, checkpoint__every=5)
    shutil.rmtree(runner.directory / "broken" / "ckpt" / "step-00000007")
    runner.run("broken", **options, checkpoint__every=5)
    assert runner.curve("broken") == runner.curve("straight")
    assert runner.events("step", "broken")[-1]["step"] == 7


def test_every_document_is_accounted_for(runner, texts):
    runner.run(**tokens(texts))
    report = json.loads((runner.directory / "out" / "data_report.json").read_text())
    assert report["train"]["rows"] + report["eval"]["rows"] == 80
    assert report["train"]["tokens"] > 8 * report["eval"]["tokens"] > 0
    assert 0.9 < report["fill_rate"] <= 1
    assert runner.events("eval")[-1]["perplexity"] > 1


def test_a_directory_of_token_files_is_one_source(runner, texts):
    keys = {"method__name": "pt", "data__max_seq_len": 32}
    runner.run("both", **{**keys, "data__train": texts})
    runner.run("listed", **{**keys, "data__train": json.dumps([str(texts / "one"), str(texts / "two")])})
    assert runner.curve("both") == runner.curve("listed")
    report = json.loads((runner.directory / "both" / "data_report.json").read_text())
    assert report["train"]["rows"] == 80


def test_text_beside_token_files_can_be_held_out(runner, texts):
    runner.run(**tokens(texts, data__eval=texts / "two.txt", data__eval_fraction=None))
    report = json.loads((runner.directory / "out" / "data_report.json").read_text())
    assert report["eval"]["rows"] == 40
    assert runner.events("eval")


def test_the_two_ways_learn_the_same_pairs(runner, texts):
    """One epoch of the text and one of its token files have as many loss tokens, and start with the same loss."""
    common = {"train__max_steps": 1, "train__batch_size": 200, "data__max_seq_len": 128, "data__eval_fraction": None}
    runner.run("text", **text(texts, **common))
    runner.run("tokens", **{**tokens(texts, **common), "data__train": texts / "one.bin", "data__mix": "concat"})
    (first,), (second,) = runner.curve("text").values(), runner.curve("tokens").values()
    assert first[0] == pytest.approx(second[0], rel=1e-2)  # pieces begin in other places


def test_without_borders_it_learns_more_pairs(runner, texts):
    runner.run("apart", **tokens(texts, train__max_steps=2))
    runner.run("joined", **tokens(texts, train__max_steps=2, method__document_mask="false"))
    assert runner.curve("apart")[1] != runner.curve("joined")[1]


def test_experts_with_every_router_loss_and_prediction_ahead(runner, texts, home):
    losses = {"model__router_aux_loss": 0.01, "model__router_z_loss": 0.001, "model__router_orthogonal_loss": 30.0}
    options = {
        "model__name": "ernie45-moe",
        "model__path": None,
        "model__size": "tiny",
        "model__tokenizer": home / "tok",
    }
    options |= {"model__architecture": '{"vocab_size": 320}', "model__router_orthogonal_decoupled": "true"}
    runner.run(**tokens(texts, **losses, **options, model__mtp="true", train__max_steps=4))
    steps = runner.events("step")
    assert {"router/aux", "router/z", "mtp/loss", "moe/orthogonal", "moe/max_load", "moe/router_entropy"} <= set(
        steps[0]
    )
    assert "router/orthogonal" not in steps[0]
    assert steps[-1]["moe/orthogonal"] < steps[0]["moe/orthogonal"]


def test_the_last_weights_can_be_exported_instead_of_their_average(runner, texts):
    options = tokens(texts, train__ema=0.9, train__max_steps=4)
    runner.run(**options)
    averaged = exported(runner)
    runner.run(**options, checkpoint__average="false")
    last = exported(runner)
    stored = {name: array for (group, name), array in runner.tensors(4).items() if group == "model"}
    assert last["model.norm.weight"] == stored["model.norm.weight"] != averaged["model.norm.weight"]


def exported(runner):
    """Name -> bytes of the tensors of ``model/``."""
    found = read_tensors(runner.directory / "out" / "model" / "model.safetensors")
    return {name: array.tobytes() for name, array in found.items()}


def test_the_recipe_runs(ernie, texts, home, tmp_path):
    words = [f"model.tokenizer={home / 'tok'}", "model.architecture={vocab_size: 320}", f"data.train={texts / 'one'}"]
    small = ["train.max_steps=2", "train.warmup_steps=1", "train.decay_steps=1", "log.report=false"]
    outcome = ernie("run", RECIPE, *words, *small, f"run.out={tmp_path / 'out'}")
    assert outcome.code == 0, outcome.err
    assert "finished" in outcome.out


# ---- refused


def test_a_method_that_learns_conversations_refuses_token_files(runner, texts, refuses):
    words = runner.words(**tokens(texts, method__name="sft"))
    refuses(["run", *words], Exit.DATA, "ERN-D063", "one.idx", remedy="--method pt")


def test_token_files_beside_text_are_refused(runner, texts, refuses):
    both = json.dumps([{"path": str(texts / "one.bin")}, {"path": str(texts / "two.txt")}])
    words = runner.words(method__name="pt", data__train=both)
    refuses(["run", *words], Exit.DATA, "ERN-D063", "two.txt", remedy="ernie data build")


def test_half_a_token_file_is_refused(runner, texts, refuses):
    shutil.copy(texts / "one.idx", runner.directory / "cut.idx")
    (runner.directory / "cut.bin").write_bytes((texts / "one.bin").read_bytes()[:-10])
    words = runner.words(method__name="pt", data__train=runner.directory / "cut.bin")
    refuses(["run", *words], Exit.DATA, "ERN-D061", "cut.bin", remedy="build the pair again")


def test_ids_that_the_model_lacks_are_refused(runner, texts, refuses):
    for ending in ("idx", "bin"):
        shutil.copy(texts / f"one.{ending}", runner.directory / f"big.{ending}")
    with (runner.directory / "big.bin").open("r+b") as file:
        file.seek(8)
        file.write(b"\xff\x7f")
    words = runner.words(method__name="pt", data__train=runner.directory / "big.bin")
    refuses(["run", *words], Exit.DATA, "ERN-D048", "big.bin", "token 4", remedy="tokenizer that belongs")


def test_a_changed_token_file_is_not_continued_with(runner, texts):
    for ending in ("idx", "bin"):
        shutil.copy(texts / f"one.{ending}", runner.directory / f"c.{ending}")
    options = {"method__name": "pt", "data__train": runner.directory / "c.bin", "data__max_seq_len": 32}
    runner.run(**options)
    with (runner.directory / "c.bin").open("r+b") as file:
        file.write(b"\x07\x00")
    with pytest.raises(DataError, match=r"c\.bin"):
        runner.run(**options)


def test_python_callers_get_the_perplexity(runner, texts):
    result = erniecore.run(overrides=runner.words(**tokens(texts, train__max_steps=2)), console="none")
    assert result.metrics["eval/perplexity"] > 1
