"""Whole runs of students, in processes of their own, and `ernie wan teach`: killed, late and started again."""

import json
import shutil
import time

import numpy as np
import pytest
from processes import user_environ
from wan_sites import make_keyring
from warmed import warm as warm

STEPS = 8


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """``base``, ``moe``, ``teacher`` (random weights), ``train.jsonl``, ``keys``."""
    from erniecore_model_init.new_model import init_model
    from small_model import make_home

    home = make_home(tmp_path_factory.mktemp("remote"))
    size = (
        "hidden_size=48,intermediate_size=64,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,head_dim=8"
    )
    init_model("ernie45", size, home / "tok", home / "teacher", seed_value=7)
    init_model("ernie45", size, home / "tok", home / "other", seed_value=8)
    make_keyring(home / "keys", ("teacher", "east"))
    return home


class Teaching:
    """``ernie wan teach`` as a process."""

    def __init__(self, warm, home, directory):
        self.warm, self.home, self.directory, self.port, self.process = warm, home, directory, 0, None

    def start(self, model="teacher", *more):
        before = len(self.events("serving"))
        words = [
            "wan", "teach", self.directory, "--model", self.home / model, "--key", self.home / "keys" / "teacher.key",
            "--student", self.home / "keys" / "east.pem", "--listen", f"127.0.0.1:{self.port}", *more,
        ]  # fmt: skip
        self.process = self.warm.start([str(word) for word in words], self.home, user_environ())
        while len(self.events("serving")) == before:
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.01)
        self.port = int(self.events("serving")[-1]["address"].rpartition(":")[2])

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def events(self, kind):
        path = self.directory / "events.jsonl"
        found = map(json.loads, path.read_text().splitlines()) if path.is_file() else ()
        return [event for event in found if event["event"] == kind]


@pytest.fixture
def teaching(warm, home, tmp_path):
    made = Teaching(warm, home, tmp_path / "teaching")
    made.start()
    yield made
    made.kill()


class Ran:
    """A run directory, afterwards."""

    def __init__(self, out):
        self.out = out
        self.events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines() if line]

    def of(self, kind):
        return [event for event in self.events if event["event"] == kind]

    def tensors(self):
        from erniecore_checkpoint.reader import load_checkpoint

        groups = load_checkpoint(self.out / "ckpt" / f"step-{STEPS:08d}").tensors
        return {
            f"{group}/{name}": np.array(groups[group][name]) for group in ("model", "optim") for name in groups[group]
        }


@pytest.fixture
def start(warm, home, teaching, tmp_path):
    """``start(name, **settings)``: the process of a student."""

    def begin(name, **changes):
        keys = {
            "model.path": home / "base",
            "method.name": "remote-distill",
            "method.teacher_at": f"127.0.0.1:{teaching.port}",
            "method.key": home / "keys" / "east.key",
            "method.certificate": home / "keys" / "teacher.pem",
            "method.top_k": 6,
            "data.train": home / "train.jsonl",
            "data.max_seq_len": 64,
            "train.batch_size": 2,
            "train.accumulation": 2,
            "train.learning_rate": 1e-3,
            "train.max_steps": STEPS,
            "checkpoint.every": 2,
            "log.report": "false",
            "run.out": tmp_path / name,
            **{key.replace("__", "."): value for key, value in changes.items()},
        }
        given = ["run", *(f"{key}={value}" for key, value in keys.items() if value is not None)]
        return warm.start(given, tmp_path, user_environ())

    return begin


@pytest.fixture
def finish(start, tmp_path):
    """``finish(name, **settings)``: what it ran."""

    def run(name, process=None, **changes):
        process = process or start(name, **changes)
        out, errors = process.communicate()
        assert process.returncode == 0, out[-2000:] + errors[-4000:]
        return Ran(tmp_path / name)

    return run


def wait_for(process, out, kind, count=1):
    """Until a run has told of so many events; ``process`` must live."""
    path = out / "events.jsonl"
    while not path.is_file() or path.read_text().count(f'"event": "{kind}"') < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def kill(process):
    process.kill()
    process.communicate()


def assert_equal(one, other):
    assert one.keys() == other.keys()
    assert all((one[name] == other[name]).all() for name in one)


@pytest.mark.multiproc
@pytest.mark.parametrize("base", ["base", "moe"])
def test_a_student_has_the_bits_of_one_whose_teacher_is_beside_it(home, finish, teaching, tmp_path, base):
    far = finish("far", model__path=home / base)
    local = {f"method__{key}": None for key in ("teacher_at", "key", "certificate")}
    near = finish(
        "near", model__path=home / base, method__name="distill", method__teacher=home / "teacher",
        method__cache=tmp_path / "cache", **local,
    )  # fmt: skip
    assert_equal(far.tensors(), near.tensors())
    traffic, last = far.of("teacher_traffic")[0], far.of("step")[-1]
    assert (traffic["sent"], traffic["received"]) == (last["teacher/sent"], last["teacher/received"])
    assert traffic["received"] > traffic["positions"] * (6 * 6 + 4)
    assert last["teacher/answered"] == 1
    left = teaching.events("left")[0]
    assert (left["up"], left["down"]) == (traffic["sent"], traffic["received"])


@pytest.mark.multiproc
@pytest.mark.slow
def test_student_and_teacher_are_killed_and_no_bit_changes(start, finish, teaching, tmp_path):
    straight = finish("straight")
    student, out = start("killed"), tmp_path / "killed"
    wait_for(student, out, "step", 3)
    teaching.kill()  # the student waits
    kill(student)
    student = start("killed")
    wait_for(student, out, "teacher_link")
    teaching.start()
    wait_for(student, out, "step", 5)
    teaching.kill()
    wait_for(student, out, "teacher_link", 2)
    teaching.start()
    killed = finish("killed", student)
    assert_equal(killed.tensors(), straight.tensors())
    assert len(killed.of("teacher_joined")) >= 2
    assert not teaching.events("refused")


@pytest.mark.multiproc
@pytest.mark.slow
def test_a_student_goes_on_without_its_teacher_and_repeats_what_it_decided(start, finish, teaching, tmp_path):
    skip = {"method__late": "skip", "method__patience": 0.3}
    student, out = start("killed", **skip), tmp_path / "killed"
    wait_for(student, out, "step", 2)
    teaching.kill()
    wait_for(student, out, "teacher_late")
    kill(student)
    teaching.start()  # what it did without its teacher it does without it again
    killed = finish("killed", **skip)
    late = {event["step"] for event in killed.of("teacher_late")}
    assert late
    assert late < set(range(1, STEPS + 1))
    answered = {event["step"]: event["teacher/answered"] for event in killed.of("step")}
    assert {step for step, share in answered.items() if share < 1} == late
    (tmp_path / "straight" / "teacher").mkdir(parents=True)
    shutil.copy(out / "teacher" / "decisions.jsonl", tmp_path / "straight" / "teacher")
    straight = finish("straight", **skip)
    assert_equal(killed.tensors(), straight.tensors())


@pytest.mark.multiproc
@pytest.mark.slow
def test_two_ranks_agree_on_what_goes_without_a_teacher(start, finish, teaching, tmp_path):
    both = {
        "method__late": "skip",
        "method__patience": 0.5,
        "parallel__name": "hybrid",
        "parallel__data": 2,
        "train__accumulation": 1,
    }
    student = start("pair", **both)
    wait_for(student, tmp_path / "pair", "step", 2)
    teaching.kill()
    ran = finish("pair", student)
    shares = [event["teacher/answered"] for event in ran.of("step")]
    assert shares[0] == 1
    assert min(shares) < 1
    assert ran.of("teacher_late")


@pytest.mark.multiproc
def test_a_student_may_be_one_of_several_sites(home, start, finish, teaching, tmp_path):
    """The method is of the site, the exchange of `wan`: one does not know the other."""
    from erniecore_wan.sites import Life
    from wan_sites import Service

    keyring = make_keyring(tmp_path / "keys", ("coordinator", "site"))
    service = Service(tmp_path / "rounds", Life(quorum=1, limit=600.0, start=1), keyring, ("site",))
    site = {
        "parallel__name": "wan", "parallel__coordinator": f"127.0.0.1:{service.port}", "parallel__interval": 4,
        "parallel__key": keyring / "site.key", "parallel__certificate": keyring / "coordinator.pem",
    }  # fmt: skip
    ran = finish("site", **site)
    service.stop()
    assert [event["step"] for event in ran.of("wan_round")] == [4, 8]
    assert ran.of("step")[-1]["teacher/answered"] == 1


@pytest.mark.multiproc
def test_another_teacher_and_a_stranger_end_the_run_and_are_named(home, start, teaching, finish, tmp_path):
    finish("first", train__max_steps=2)
    teaching.kill()
    teaching.start("other")
    (tmp_path / "again" / "teacher").mkdir(parents=True)
    shutil.copy(tmp_path / "first" / "teacher" / "fingerprint", tmp_path / "again" / "teacher")
    keyring = make_keyring(tmp_path / "keys", ("east",))  # of the same name
    for changes, words in (({}, "another teacher"), ({"method__key": keyring / "east.key"}, "stranger")):
        process = start("again", **changes)
        _, errors = process.communicate()
        assert process.returncode == 3
        assert words in errors
    assert teaching.events("refused")[-1]["kind"] == "stranger"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"method.teacher_at": ""}, "method.teacher_at"),
        ({"method.teacher_at": "nowhere"}, "method.teacher_at"),
        ({"method.certificate": ""}, "method.certificate"),
        ({"method.teacher": "teacher"}, "method.teacher"),
        ({"method.top_k": 320}, "method.top_k"),
        ({"method.top_k": 0}, "method.top_k"),
        ({"method.timeout": 4000}, "method.timeout"),
        ({"method.late": "skip", "method.patience": 1800}, "method.patience"),
        ({"method.key": "gone.key"}, "method.key"),
    ],
)
def test_settings_that_cannot_be_are_named(home, tmp_path, changes, key):
    import erniecore
    from erniecore.api import ErnieError

    keys = {
        "model.path": home / "base", "method.name": "remote-distill", "data.train": home / "train.jsonl",
        "method.teacher_at": "127.0.0.1:1", "method.key": home / "keys" / "east.key",
        "method.certificate": home / "keys" / "teacher.pem", "run.out": tmp_path / "run", "train.max_steps": 1,
    }  # fmt: skip
    with pytest.raises(ErnieError, match=key):
        erniecore.run(overrides=[f"{name}={value}" for name, value in {**keys, **changes}.items()], console="none")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--listen": "7019"}, "this is no address"),
        ({"--top-k": "320"}, "more tokens than there are"),
        ({"--model": "gone"}, "gone"),
        ({"--student": "gone.pem"}, "this is no certificate"),
    ],
)
def test_a_teacher_that_cannot_be_is_named(home, tmp_path, warm, changes, words):
    options = {
        "--model": home / "teacher", "--key": home / "keys" / "teacher.key", "--student": home / "keys" / "east.pem",
        "--listen": "127.0.0.1:0",
    }  # fmt: skip
    given = [str(word) for pair in {**options, **changes}.items() for word in pair]
    process = warm.start(["wan", "teach", str(tmp_path / "teaching"), *given], tmp_path, user_environ())
    _, errors = process.communicate()
    assert process.returncode == 2
    assert words in errors
