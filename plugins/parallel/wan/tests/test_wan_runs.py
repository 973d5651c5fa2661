"""Whole runs as sites: processes of their own, each with its data and layout, and a coordinator in this one."""

import json
import random

import numpy as np
import pytest
from erniecore_wan.coordinator import Life
from processes import user_environ
from wan_sites import Service, make_keyring
from warmed import warm as warm

SIZE = "hidden_size=32,intermediate_size=64,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=4,head_dim=8"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """``model``, ``east.jsonl``, ``west.jsonl`` and ``keys``."""
    from erniecore_model_init.new_model import init_model
    from erniecore_text.training import train

    home = tmp_path_factory.mktemp("wan")
    (home / "tok").mkdir()
    train([f"{a} plus {b} {a + b}" for a in range(31) for b in range(31)], 300).save(home / "tok")
    init_model("ernie45", SIZE, home / "tok", home / "model", seed_value=2)
    init_model("ernie45", SIZE, home / "tok", home / "other", seed_value=3)
    for name in ("east", "west"):
        rng = random.Random(name)
        rows = [{"text": f"{(a := rng.randint(0, 30))} plus {(b := rng.randint(0, 30))} {a + b}"} for _ in range(60)]
        (home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    make_keyring(home / "keys")
    return home


@pytest.fixture
def service(home, tmp_path):
    made = Service(tmp_path / "coordinator", Life(quorum=1, limit=600.0, start=2), home / "keys")
    yield made
    made.stop()


def arguments(home, service, name, out, **changes):
    keys = {
        "model.path": home / "model",
        "method.name": "pt",
        "data.train": home / f"{name}.jsonl",
        "data.max_seq_len": 32,
        "train.batch_size": 2,
        "train.learning_rate": 1e-3,
        "train.max_steps": 8,
        "run.out": out,
        "log.report": "false",
        "parallel.name": "wan",
        "parallel.coordinator": f"127.0.0.1:{service.port}",
        "parallel.key": home / "keys" / f"{name}.key",
        "parallel.certificate": home / "keys" / "coordinator.pem",
        "parallel.interval": 4,
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    return ["run", *(f"{key}={value}" for key, value in keys.items())]


class Ran:
    """A run directory, afterwards."""

    def __init__(self, out):
        self.out = out
        self.events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines() if line]

    def of(self, kind):
        return [event for event in self.events if event["event"] == kind]

    def weights(self, step=8, group="model"):
        from erniecore_checkpoint.reader import load_checkpoint

        tensors = load_checkpoint(self.out / "ckpt" / f"step-{step:08d}").tensors[group]
        return {name: np.array(tensors[name]) for name in tensors}


def finish(processes):
    ended = {}
    for name, process in processes.items():
        ended[name] = process.communicate()
        if process.returncode:  # the others would wait for it
            for other in processes.values():
                other.kill()
    for name, process in processes.items():
        out, err = ended[name]
        assert process.returncode == 0, f"{name}: {out[-2000:]}{err[-4000:]}"


@pytest.fixture
def start(warm, home, service, tmp_path):
    """``start(name, **settings)``: the process of a site."""

    def begin(name, **changes):
        environ = user_environ()
        return warm.start(arguments(home, service, name, tmp_path / name, **changes), tmp_path, environ)

    return begin


@pytest.fixture
def run_sites(start, tmp_path):
    """``run_sites({name: settings}, **of_both)``: what each site ran."""

    def run(sites, **both):
        finish({name: start(name, **both, **own) for name, own in sites.items()})
        return {name: Ran(tmp_path / name) for name in sites}

    return run


def assert_equal(one, other):
    assert one.keys() == other.keys()
    assert all((one[name] == other[name]).all() for name in one)


@pytest.mark.multiproc
def test_two_sites_end_with_the_same_weights_and_tell_of_every_round(service, run_sites):
    ran = run_sites({"east": {}, "west": {"train__batch_size": 4}})
    assert_equal(ran["east"].weights(), ran["west"].weights())
    for name, one in ran.items():
        assert [event["round"] for event in one.of("wan_round")] == [0, 1]
        assert [event["step"] for event in one.of("wan_round")] == [4, 8]
        assert one.of("wan_joined")[0]["site"] == name
    weights = ran["east"].of("wan_round")[0]["members"]
    assert weights["west"] > weights["east"]  # by samples
    assert service.coordinator.done
