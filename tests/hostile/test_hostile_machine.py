"""A machine that refuses: no memory, no room, no place to write, closed streams; and what must not be left or said."""

import os
import resource
import stat

import pytest
from hostile_files import assert_refused

from erniecore.errors import Exit

SETTINGS = ["train.max_steps=2", "data.max_seq_len=64", "eval.every=0"]
STEPS = ["checkpoint.every=1"]


@pytest.fixture
def trains(ernie, model, rows):
    """Train for two steps."""
    words = ["run", "--model", model, "--method", "sft", "--data", rows, "--out", "run", *SETTINGS]
    return lambda *more, **how: ernie(*words, *more, **how)


@pytest.mark.area("directory, disk, limits")
@pytest.mark.parametrize("most", [1000, 4000, 10_000, 30_000, 60_000, 150_000])
def test_a_file_system_without_room(trains, box, most):
    outcome = trains(*STEPS, before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))
    assert_refused(outcome, {0, Exit.ENVIRONMENT, Exit.CHECKPOINT, Exit.DATA})
    if outcome.code:
        done = trains(*STEPS)
        assert_refused(done, {0})


@pytest.mark.area("directory, disk, limits")
@pytest.mark.parametrize("most", [8, 16, 32, 64])
def test_few_open_files(trains, most):
    outcome = trains(before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)))
    assert_refused(outcome, {0, Exit.ENVIRONMENT, Exit.CHECKPOINT, Exit.DATA})


@pytest.mark.area("directory, disk, limits")
@pytest.mark.parametrize("memory", [1 << 20, 8 << 20, 16 << 20, 32 << 20, 64 << 20, 128 << 20])
def test_little_memory(trains, memory):
    assert_refused(trains(memory=memory), {0, Exit.MEMORY, Exit.ENVIRONMENT})


@pytest.mark.area("directory, disk, limits")
@pytest.mark.parametrize("name", ["ckpt", "control", "control/lock", "events.jsonl", "logs", "model", "resolved.yaml", "cache",
                                  "control/stop", "data_report.json"])  # fmt: skip
@pytest.mark.parametrize("kind", ["file", "directory", "link to nowhere", "link to outside"])
def test_things_in_the_way(trains, box, name, kind):
    place = box / "run" / name
    place.parent.mkdir(parents=True)
    if kind == "file":
        place.write_bytes(b"\x1b[31mnot ours\n")
    elif kind == "directory":
        place.mkdir()
    else:
        place.symlink_to("nowhere/at/all" if kind == "link to nowhere" else box.parent / "outside" / "secret.txt")
    asked_to_stop = name == "control/stop"  # as `ernie runs stop` leaves it
    outcome = trains()
    if asked_to_stop and outcome.code == Exit.PREEMPTED:
        return
    assert_refused(outcome, {0, Exit.USAGE, Exit.ENVIRONMENT, Exit.CHECKPOINT, Exit.DATA})


@pytest.mark.area("directory, disk, limits")
@pytest.mark.parametrize("stream", [1, 2])
@pytest.mark.parametrize("kind", ["closed", "full", "a pipe that nobody reads"])
def test_streams_that_cannot_be_written(trains, box, stream, kind):
    def before():
        if kind == "closed":
            os.close(stream)
        elif kind == "full":
            os.dup2(os.open("/dev/full", os.O_WRONLY), stream)
        else:
            read, write = os.pipe()
            os.close(read)
            os.dup2(write, stream)

    assert trains(before=before).code == 0
    assert (box / "run" / "model" / "model.safetensors").is_file()


@pytest.mark.area("secrets, network, modes")
@pytest.mark.parametrize(
    "name", ["AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "MY_PASSWORD", "ERNIE_NOT_A_SECTION", "TRACEBACK"]
)
def test_secrets_of_the_environment_are_nowhere(trains, box, name):
    outcome = trains(environ={name: "s3cr3t-v4lue"})
    assert "s3cr3t-v4lue" not in outcome.out + outcome.err
    for home, _, files in os.walk(box):
        for file in files:
            with open(os.path.join(home, file), "rb") as stream:
                assert b"s3cr3t-v4lue" not in stream.read(), file


@pytest.mark.area("secrets, network, modes")
@pytest.mark.parametrize("mask", [0o077, 0o027, 0o022])
def test_files_have_the_modes_that_the_user_wants(trains, box, mask):
    assert trains(*STEPS, before=lambda: os.umask(mask)).code == 0
    for home, folders, files in os.walk(box / "run"):
        for name in (*folders, *files):
            mode = stat.S_IMODE(os.lstat(os.path.join(home, name)).st_mode)
            assert not mode & mask, (name, oct(mode))


@pytest.mark.area("secrets, network, modes")
@pytest.mark.parametrize("words", [["data", "check", "file://example.com/d.jsonl"], ["data", "check", "user/name"],
                                   ["generate", "--model", "baidu/ERNIE-4.5-0.3B-PT", "--prompt", "x"],
                                   ["model", "check", "https://example.com/model"],
                                   ["run", "--model", "baidu/ERNIE-4.5-0.3B-PT", "--method", "sft", "--data", "a/b"],
                                   ["config", "import", "https://example.com/a.yaml"],
                                   ["merge", "user/adapter", "--base", "user/base", "--out", "o"]],
                         ids=lambda words: " ".join(words)[:40])  # fmt: skip
def test_nothing_is_fetched(ernie, words):
    """The harness ends a process that opens a connection."""
    assert_refused(ernie(*words), {Exit.USAGE, Exit.DATA, Exit.ENVIRONMENT, Exit.CHECKPOINT})
