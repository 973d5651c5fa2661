"""A device that Paddle loads as a plugin, like Ascend, Iluvatar and MetaX accelerators: opened, described and trained on, by one
process and by two with the device's own collectives. Its memory is that of the host."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from erniecore_conformance.processes import on_ranks

HELPERS = Path(__file__).with_name("hostcard_helpers.py")
SIZES = {
    "ernie45": "hidden_size=32,intermediate_size=64,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=4,head_dim=8",
    "ernie45-moe": "hidden_size=32,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2",
}
#: label -> (model, layout of two processes)
LAYOUTS = {
    "gradients": ("ernie45", ["parallel.sharding=2", "parallel.sharding_stage=2", "train.accumulation=1"]),
    "tensor": ("ernie45-moe", ["parallel.tensor=2"]),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Models and rows; a run of each model on the processor."""
    from erniecore_model_init.new_model import init_model
    from erniecore_text.training import train

    import erniecore

    home = tmp_path_factory.mktemp("plugin-device")
    (home / "tok").mkdir()
    sums = [(a, b) for a in range(20) for b in range(20)]
    train([f"{a} plus {b} {a + b} user assistant" for a, b in sums], 310).save(home / "tok")
    rows = [{"instruction": f"{a} plus {b}", "output": f"{a + b}"} for a, b in sums[::7]]
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, size in SIZES.items():
        init_model(name, size, home / "tok", home / name, seed_value=1)
        erniecore.run(overrides=words(home, name, home / f"cpu-{name}"), console="none")
    return home


def words(home, model, out, *more):
    keys = [f"model.name={model}", f"model.path={home / model}", "method.name=sft", f"data.train={home / 'rows.jsonl'}"]
    keys += ["data.max_seq_len=128", "train.batch_size=2", "train.accumulation=2", "train.learning_rate=5e-4"]
    return [*keys, "train.max_steps=3", "log.report=false", f"run.out={out}", *more]


def steps(run):
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [(event["loss"], event["grad_norm"]) for event in events if event["event"] == "step"]


def ernie(*arguments):
    command = [sys.executable, "-m", "erniecore", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def together(hostcard, home):
    """What two processes found, each on an accelerator, and their runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUSTOM_DEVICE_ROOT", str(hostcard / "accelerators"))
        patch.setenv("HOSTCARD_MEMORY", str(64 << 20))
        patch.setenv("GLOG_minloglevel", "2")
        patch.syspath_prepend(str(hostcard / "site"))
        on_accelerator = ["device.name=hostcard", "parallel.name=hybrid"]
        cases = [words(home, model, home / label, *on_accelerator, *more) for label, (model, more) in LAYOUTS.items()]
        return on_ranks(2, f"{HELPERS}:everything", cases, device="hostcard")


@pytest.mark.multiproc
def test_each_process_has_an_accelerator_of_its_own(together):
    assert [rank["facts"]["place"] for rank in together] == ["Place(hostcard:0)", "Place(hostcard:1)"]


@pytest.mark.multiproc
def test_memory_streams_and_events(together):
    found = together[1]["facts"]
    assert found["sum"] == 1 << 20
    assert found["event"]
    assert found["grown"] >= 4 << 20
    assert "CustomDevice error" in found["full"][0]


@pytest.mark.multiproc
def test_an_accelerator_of_which_paddle_knows_no_name_is_described(together):
    assert together[1]["facts"]["describe"] == {
        "device": "hostcard:1",
        "collectives": "shared memory",
        "name": "host memory as accelerators",
    }


@pytest.mark.multiproc
def test_collectives_are_native_and_numpys(together):
    assert [rank["collectives"] for rank in together] == [["xccl", []]] * 2


@pytest.mark.multiproc
@pytest.mark.parametrize("label", LAYOUTS)
def test_two_accelerators_train_as_the_processor_does(together, home, label):
    np.testing.assert_allclose(steps(home / label), steps(home / f"cpu-{LAYOUTS[label][0]}"), rtol=1e-5)


@pytest.fixture
def here(accelerators, home):
    """The run on an accelerator, made by the first test that asks for it."""
    if not (home / "here").exists():
        done = ernie("run", *words(home, "ernie45", home / "here"), "--device", "hostcard")
        assert done.returncode == 0, done.stdout + done.stderr
    return home / "here"


def test_one_accelerator_trains_as_the_processor_does(here, home):
    np.testing.assert_allclose(steps(here), steps(home / "cpu-ernie45"), rtol=1e-6)


def peak(run):
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return max(event["peak_memory"] for event in events if event["event"] == "step")


def test_the_optimizers_state_is_in_the_hosts_memory(accelerators, here, home):
    away = ("optimizer.offload=true", "checkpoint.every=2")
    stopped = ernie("run", *words(home, "ernie45", home / "away", *away, "run.until=2"), "--device", "hostcard")
    assert stopped.returncode == 75, stopped.stdout + stopped.stderr
    done = ernie("run", *words(home, "ernie45", home / "away", *away), "--device", "hostcard")
    assert done.returncode == 0, done.stdout + done.stderr
    np.testing.assert_allclose(steps(home / "away"), steps(home / "cpu-ernie45"), rtol=1e-6)
    trained = 8 * 42_000  # two moments in float32 of about as many parameters
    assert peak(here) - peak(home / "away") > trained / 2


def test_writes_that_views_lose_are_refused(accelerators, home, monkeypatch):
    monkeypatch.setenv("FLAGS_use_stride_kernel", "0")
    done = ernie("run", *words(home, "ernie45", home / "lost"), "--device", "hostcard")
    assert done.returncode == 3
    assert "ERN-E023" in done.stdout + done.stderr
    assert not (home / "lost" / "ckpt").exists()


def test_a_full_accelerator_ends_with_what_was_planned_and_what_it_has(accelerators, home, monkeypatch):
    monkeypatch.setenv("HOSTCARD_MEMORY", str(1 << 20))
    done = ernie("run", *words(home, "ernie45", home / "full"), "--device", "hostcard")
    assert done.returncode == 6, done.stdout + done.stderr
    told = " ".join(done.stderr.split())
    assert re.search(r"out of memory .* tensors held [\d.]+ KiB; planned 2\.\d MiB", told)
    assert "train.batch_size=1 train.accumulation=4" in told
    assert "optimizer.offload=true" in told
