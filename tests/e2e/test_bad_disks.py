"""Full, read-only and occupied disks: exit codes, what is left, and going on once there is space again."""

import fcntl
import os
import shutil
import subprocess

import pytest
from erniecore_checkpoint.manifest import list_checkpoints
from erniecore_checkpoint.reader import newest_verified

from erniecore.errors import Exit

SIX = {"train__max_steps": 6, "checkpoint__every": 2}


@pytest.fixture
def small_disk(tmp_path):
    """``small_disk(*options)`` mounts a file system of 8 MiB and returns its directory."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(*options):
        words = ["mount", "-t", "tmpfs", "-o", ",".join(["size=8m", *options]), "tmpfs", str(place)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"needs the right to mount: {done.stderr.strip()}")
        return place

    yield mount
    if os.path.ismount(place):
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk, leave):
    """Fill up ``disk`` but for some bytes; returns the file that takes them."""
    filler = disk / "filler"
    with filler.open("wb") as file:
        file.write(bytes(shutil.disk_usage(disk).free - leave))
    return filler


def test_full_disk_ends_the_run_and_loses_nothing(ernie, refuses, runner, trained_once, small_disk):
    disk = small_disk()
    runner.directory = disk
    filler = fill(disk, 900_000)  # two checkpoints of 355 kB fit, a third one does not
    words = ["run", *runner.words("run", **SIX)]
    refuses(words, Exit.CHECKPOINT, disk / "run" / "ckpt", "KiB free", remedy="free space there")
    assert [p.name for p in list_checkpoints(disk / "run" / "ckpt")] == ["step-00000002", "step-00000004"]
    assert ernie("ckpt", "verify", disk / "run").code == 0
    filler.unlink()
    outcome = ernie(*words)
    assert outcome.code == 0, outcome.err
    assert "step-00000004: the newest verified checkpoint" in outcome.out
    assert runner.tensors(6, "run") == tensors(runner, trained_once)


def tensors(runner, trained):
    return type(runner)(runner.home, trained.parent).tensors(6, trained.name)


def test_no_space_for_the_first_checkpoint_is_told_before_training(refuses, runner, small_disk):
    runner.directory = small_disk()
    fill(runner.directory, 100_000)
    refuses(["run", *runner.words("run", **SIX)], Exit.CHECKPOINT, "the first checkpoint", remedy="free space there")
    assert not (runner.directory / "run" / "events.jsonl").exists()


def test_write_that_fails_half_way_leaves_the_older_checkpoints(
    run_ernie, refused, ernie, runner, trained, trained_once
):
    for step in (4, 6):
        shutil.rmtree(trained / "ckpt" / f"step-0000000{step}")
    shutil.rmtree(trained / "model")
    words = ["run", *runner.words(**SIX)]
    limited = ["sh", "-c", 'ulimit -f 300; exec "$@"', "sh"]  # 150 KiB: the moments have 231 kB
    outcome = run_ernie(*words, before=limited)
    refused(outcome, Exit.CHECKPOINT, trained / "ckpt", "older checkpoints are untouched", remedy="ulimit -f")
    assert [p.name for p in (trained / "ckpt").iterdir() if "step" in p.name] == ["step-00000002"]
    assert newest_verified(trained / "ckpt")[0].name == "step-00000002"
    assert ernie(*words).code == 0
    assert runner.tensors(6) == tensors(runner, trained_once)


@pytest.mark.parametrize(
    "words",
    [
        ["model", "init", "--model", "ernie45", "--tokenizer", "TOK", "--size", "tiny", "--out", "DISK/m"],
        ["export", "BASE", "--to", "hf", "--out", "DISK/m"],
        ["export", "BASE", "--to", "gguf", "--out", "DISK/m"],
        ["quantize", "BASE", "--to", "wint8", "--out", "DISK/m"],
        ["tokenizer", "train", "TRAIN", "--vocab-size", 320, "--out", "DISK/m"],
    ],
    ids=lambda words: " ".join(words[:4:3]),
)
@pytest.mark.parametrize("disk", ["full", "read-only"])
def test_what_cannot_be_written_leaves_nothing(refuses, home, small_disk, snapshot, words, disk):
    before = snapshot(home)
    place = small_disk(*(["ro"] if disk == "read-only" else []))
    if disk == "full":
        fill(place, 20_000).rename(place / "filler")
    names = {"TOK": home / "tok", "BASE": home / "base", "TRAIN": home / "train.jsonl", "DISK/m": place / "m"}
    code = Exit.ENVIRONMENT if words[0] == "tokenizer" else Exit.CHECKPOINT
    refuses([names.get(word, word) for word in words], code, place, remedy="fix ")
    assert [p.name for p in place.iterdir()] == (["filler"] if disk == "full" else [])
    assert snapshot(home) == before


def test_read_only_run_directory_is_refused_and_unchanged(refuses, runner, trained, snapshot, small_disk):
    disk = small_disk()
    runner.directory = disk
    shutil.copytree(trained, disk / "out")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    before = snapshot(disk)
    words = ["run", *runner.words(**SIX | {"train__max_steps": 8})]
    refuses(words, Exit.ENVIRONMENT, disk / "out", remedy="choose another directory with run.out")
    assert snapshot(disk) == before


@pytest.mark.parametrize("place", ["/proc/nothing", "FILE", "FILE/run"])
def test_place_that_is_no_directory_is_refused(refuses, runner, place):
    file = runner.directory / "file"
    file.write_text("mine")
    place = place.replace("FILE", str(file))
    refuses(["run", *runner.words(run__out=place)], Exit.ENVIRONMENT, place, remedy="choose another directory")
    assert file.read_text() == "mine"


def test_directory_of_another_run_is_refused_and_kept(refuses, runner, trained, snapshot):
    before = snapshot(trained)
    words = ["run", *runner.words(**SIX, train__learning_rate=1e-4, data__max_seq_len=32)]
    places = ("data.max_seq_len: 64 -> 32", "train.learning_rate: 0.003 -> 0.0001")
    refuses(words, Exit.USAGE, *places, remedy="or choose another run.out (--out)")
    refuses([*words, "--resume", "never"], Exit.USAGE, "already holds a run", remedy="choose another run.out")
    lost = {n for n, data in before.items() if snapshot(trained)[n] != data and not n.startswith("logs/")}
    assert not lost


def test_directory_of_a_model_is_refused_and_kept(refuses, runner, snapshot):
    model = shutil.copytree(runner.home / "base", runner.directory / "model")
    before = snapshot(model)
    refuses(["run", *runner.words(run__out=model)], Exit.USAGE, model, "config.json", remedy="choose another run.out")
    assert before.items() <= snapshot(model).items()


def test_directory_in_use_is_refused(refuses, runner, trained):
    with (trained / "control" / "lock-0").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refuses(["run", *runner.words(**SIX)], Exit.ENVIRONMENT, trained, "another process", remedy="wait for it")
