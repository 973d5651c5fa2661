"""Whole runs as sites: processes of their own, each with its data and layout, and a coordinator in this one."""

import json
import os
import random
import signal
import time
from itertools import pairwise

import numpy as np
import pytest
from erniecore_wan.sites import Life
from processes import user_environ
from wan_sites import Service, make_keyring
from warmed import warm as warm

from erniecore.api import ErnieError

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
    moe = "hidden_size=32,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2"
    init_model("ernie45-moe", moe, home / "tok", home / "moe", seed_value=2)
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


def wait_for(start_again, out, kind, count=1):
    """Until a run has told of so many events; ``start_again``: its process, which must live."""
    path = out / "events.jsonl"
    while not path.is_file() or path.read_text().count(f'"event": "{kind}"') < count:
        if start_again.poll() is not None:
            finish({out.name: start_again})
            raise AssertionError(f"{out.name} ended before {kind} {count}")
        time.sleep(0.005)


def kill(process):
    process.kill()
    process.communicate()


PAIRS = (("east", "west"), ("west", "east"))
#: updates that leave something behind for the next round, and checkpoints in between
FRAGILE = {"parallel__form": "sparse", "parallel__k": 32, "parallel__interval": 3, "checkpoint__every": 2}


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


@pytest.mark.multiproc
def test_masked_updates_train_as_plain_ones_do(home, service, run_sites):
    peers = {name: {"parallel__peers": json.dumps([str(home / "keys" / f"{other}.pem")])} for name, other in PAIRS}
    ran = run_sites(peers, parallel__secure=True)
    assert_equal(ran["east"].weights(), ran["west"].weights())
    assert {event["form"] for event in ran["east"].of("wan_update")} == {"masked"}
    assert [len(event["members"]) for event in ran["east"].of("wan_round")] == [2, 2]
    losses = [event["loss"] for event in ran["east"].of("step")]
    assert losses[-1] < losses[0]


@pytest.mark.multiproc
def test_parts_that_no_pattern_names_stay_with_their_site(run_sites):
    ran = run_sites({"east": {}, "west": {}}, parallel__payload="['*.q_proj.weight', '*norm*']", train__max_steps=4)
    one, other = (site.weights(4) for site in ran.values())
    common = {name for name in one if (one[name] == other[name]).all()}
    assert common == {name for name in one if "q_proj" in name or "norm" in name}
    sizes = sum(one[name].size for name in common)
    for site in ran.values():
        (update,) = site.of("wan_update")
        assert 4 * sizes < update["bytes"] < 4 * sizes + 2000


@pytest.mark.multiproc
@pytest.mark.parametrize("more", [{}, {"parallel__fragments": 2}, {"parallel__form": "sparse", "parallel__k": 4096}])
def test_sites_go_on_with_the_mean_of_the_balance_biases_of_their_routers(home, run_sites, more):
    both = {
        "model__path": home / "moe",
        "model__bias_update_rate": 0.01,
        "train__max_steps": 4,
        "parallel__interval": 2,
    }
    ran = run_sites({"east": {}, "west": {"train__batch_size": 4}}, **both, **more)
    one, other = (site.weights(4) for site in ran.values())
    biases = [name for name in one if name.endswith("e_score_correction_bias")]
    assert biases
    assert all(np.abs(one[name]).max() > 0 for name in biases)
    if not more.get("parallel__fragments"):  # the last round has one of them
        assert_equal(one, other)


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize("layout", ['{"name": "hybrid", "data": 2, "expert": 2}', '{"name": "hybrid", "tensor": 2}'])
def test_the_mean_of_the_biases_is_that_of_sites_with_other_layouts(home, run_sites, layout):
    both = {
        "model__path": home / "moe",
        "model__bias_update_rate": 0.01,
        "train__max_steps": 4,
        "parallel__interval": 2,
    }
    ran = run_sites({"east": {"parallel__inner": layout}, "west": {}}, **both)
    one, other = (site.weights(4) for site in ran.values())
    assert any(np.abs(one[name]).max() > 0 for name in one if name.endswith("e_score_correction_bias"))
    assert_equal(one, other)


@pytest.mark.multiproc
def test_balance_biases_stay_with_their_site_where_no_pattern_names_them(home, run_sites):
    both = {
        "model__path": home / "moe",
        "model__bias_update_rate": 0.01,
        "train__max_steps": 4,
        "parallel__interval": 2,
    }
    ran = run_sites({"east": {}, "west": {}}, **both, parallel__averaged="[]")
    one, other = (site.weights(4) for site in ran.values())
    differing = {name for name in one if (one[name] != other[name]).any()}
    assert differing
    assert all(name.endswith("e_score_correction_bias") for name in differing)


@pytest.mark.multiproc
@pytest.mark.slow
def test_a_site_killed_in_each_phase_ends_with_the_bits_of_undisturbed_runs(home, service, start, run_sites, tmp_path):
    east, out = start("east", **FRAGILE), tmp_path / "east"
    wait_for(east, out, "step")  # it trains
    kill(east)
    east = start("east", **FRAGILE)
    wait_for(east, out, "wan_update")  # it waits for the other site, which has not begun
    kill(east)
    west = start("west", **FRAGILE)
    east = start("east", **FRAGILE)
    wait_for(east, out, "wan_round")  # the round is closed, and no checkpoint knows it yet
    kill(east)
    wait_for(west, tmp_path / "west", "wan_update", 2)  # the other site goes on and waits
    kill(west)
    finish({"east": start("east", **FRAGILE), "west": start("west", **FRAGILE)})
    killed = {name: Ran(tmp_path / name) for name in ("east", "west")}
    assert not service.events("refused")
    straight = Service(tmp_path / "straight", Life(quorum=1, limit=600.0, start=2), home / "keys")
    for name in killed:
        (tmp_path / name).rename(tmp_path / f"killed-{name}")
        killed[name].out = tmp_path / f"killed-{name}"
    undisturbed = run_sites({"east": {}, "west": {}}, **FRAGILE, parallel__coordinator=f"127.0.0.1:{straight.port}")
    straight.stop()
    for name, one in killed.items():
        for group in ("model", "optim"):
            assert_equal(one.weights(group=group), undisturbed[name].weights(group=group))


#: WAN_KILLS=50 for a storm
KILLS, AT_ONCE = int(os.environ.get("WAN_KILLS", "3")), 5


@pytest.mark.multiproc
@pytest.mark.slow
def test_random_kills_of_both_sites_change_no_bit(home, warm, tmp_path):
    rng, ends, kills = random.Random(7), [], 0

    def begin(service, out, name):
        given = arguments(home, service, name, out / name, **FRAGILE, train__max_steps=12)
        return warm.start(given, tmp_path, user_environ())

    while kills < KILLS:
        out = tmp_path / str(len(ends))
        service = Service(out / "coordinator", Life(quorum=1, limit=600.0, start=2), home / "keys")
        running = {name: begin(service, out, name) for name in ("east", "west")}
        for _ in range(min(AT_ONCE, KILLS - kills) if ends else 0):  # the first one is undisturbed
            name = rng.choice(sorted(running))
            time.sleep(rng.uniform(0.0, 1.5))
            if running[name].poll() is None:
                kill(running[name])
                running[name], kills = begin(service, out, name), kills + 1
        finish(running)
        assert not service.events("refused")
        service.stop()
        ends.append([Ran(out / name).weights(12, group) for name in running for group in ("model", "optim")])
    for end in ends[1:]:
        for one, other in zip(end, ends[0], strict=True):
            assert_equal(one, other)
    print(f"{kills} kills in {len(ends) - 1} runs of two sites: the same bits")


@pytest.mark.multiproc
def test_fragments_arrive_while_training_goes_on(run_sites):
    ran = run_sites({"east": {}, "west": {}}, parallel__fragments=2, parallel__overlap=1, parallel__mixing=0.5)
    rounds = {name: one.of("wan_round") for name, one in ran.items()}
    assert [event["fragment"] for event in rounds["east"]] == [0, 1, 0, 1]
    assert [event["step"] for event in rounds["east"]] == [3, 5, 7, 8]
    assert [e["anchor"] for e in rounds["east"]] == [e["anchor"] for e in rounds["west"]]


@pytest.mark.multiproc
def test_an_adaptive_run_follows_what_the_coordinator_decides(service, run_sites):
    both = {"parallel__adaptive": True, "parallel__cap": 3, "parallel__interval": 2, "parallel__k": 16}
    ran = run_sites({"east": {}, "west": {"train__batch_size": 4}}, **both)
    anchors = [{event["round"]: event["anchor"] for event in one.of("wan_round")} for one in ran.values()]
    common = anchors[0].keys() & anchors[1].keys()  # the faster site is done first
    assert len(common) >= 2
    assert all(anchors[0][number] == anchors[1][number] for number in common)
    decided = [event["plan"] for event in service.events("closed") if event["plan"]]
    assert decided
    assert all(one["interval"] >= 1 and "overhead" in one["reason"] for plan in decided for one in plan.values())
    for name, one in ran.items():
        steps = [event["step"] for event in one.of("wan_round")]
        plans = {event["step"]: event["interval"] for event in one.of("wan_plan")}
        assert plans, name
        for step, following in pairwise(steps):
            if step in plans and following != 8:
                assert following - step == plans[step]


@pytest.mark.multiproc
def test_a_site_that_is_stopped_while_it_waits_goes_on_waiting_later(service, start, tmp_path):
    east = start("east")
    wait_for(east, tmp_path / "east", "wan_update")
    east.send_signal(signal.SIGTERM)
    east.communicate()
    assert east.returncode == 75
    finish({"east": start("east"), "west": start("west")})
    ran = {name: Ran(tmp_path / name) for name in ("east", "west")}
    assert_equal(ran["east"].weights(), ran["west"].weights())
    assert not service.events("refused")


@pytest.mark.multiproc
def test_a_site_that_comes_back_too_late_goes_on_from_the_common_weights(service, start, tmp_path):
    west, east = start("west"), start("east")
    wait_for(west, tmp_path / "west", "wan_round")
    kill(west)
    service.coordinator.life = Life(quorum=1, limit=0.5, start=2)
    finish({"east": east})  # the other one is not stopped by it
    east = Ran(tmp_path / "east")
    assert "west" in east.of("wan_round")[-1]["missing"]
    finish({"west": start("west")})
    west = Ran(tmp_path / "west")
    assert "closed without west" in west.of("wan_late")[0]["reason"]
    assert west.of("wan_anchor")[-1]["reason"]
    assert west.of("run_end")[-1]["status"] == "finished"


@pytest.mark.multiproc
def test_a_site_with_another_base_model_ends_and_says_why(home, service, start, tmp_path):
    service.coordinator.life = Life(quorum=1, limit=600.0, start=1)
    east = start("east", adapter__name="lora")
    wait_for(east, tmp_path / "east", "wan_joined")
    west = start("west", adapter__name="lora", model__path=home / "other")
    _, errors = west.communicate()
    assert west.returncode == 3
    assert "wrong-model" in errors
    finish({"east": east})
    assert service.events("refused")[0] | {"time": 0, "reason": ""} == {
        "event": "refused", "time": 0, "site": "west", "kind": "wrong-model", "reason": "", "count": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"parallel__key": ""}, "parallel.key"),
        ({"parallel__inner.name": "wan"}, "parallel.inner.name"),
        ({"parallel__inner.name": "hybrid", "parallel__inner.tensr": 2}, "parallel.inner.tensr"),
        ({"parallel__overlap": 4}, "parallel.overlap"),
        ({"parallel__mixing": 0.5}, "parallel.mixing"),
        ({"parallel__fragments": 9}, "parallel.interval"),
        ({"parallel__k": 5000}, "parallel.k"),
    ],
)
def test_settings_that_cannot_be_are_named(home, service, tmp_path, changes, key):
    import erniecore

    with pytest.raises(ErnieError, match=key):
        erniecore.run(overrides=arguments(home, service, "east", tmp_path / "run", **changes)[1:], console="none")


@pytest.mark.multiproc
def test_a_pattern_that_fits_nothing_is_named_before_the_first_step(home, service, tmp_path):
    import erniecore

    with pytest.raises(ErnieError, match="no trained parameter fits"):
        erniecore.run(
            overrides=arguments(home, service, "east", tmp_path / "run", parallel__payload="[nothing.*]")[1:],
            console="none",
        )
