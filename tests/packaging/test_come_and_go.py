"""A run from wheels alone is killed twice; meanwhile one plugin is installed, and removed again when another comes. The same
command goes on each time, and ends with the losses and weights of a run that nobody disturbed."""

import json
import signal
import subprocess
import time

import pytest
from erniecore_conformance.scaffold.generate import write
from talker import talker as talker  # the fixture

#: the smallest set that trains; the device ``cpu`` is part of the core, and paddle is borrowed
CHOSEN = ("erniecore", "erniecore-ernie45", "erniecore-sft", "erniecore-formats")
STEPS, EVERY = 160, 20

pytestmark = [pytest.mark.slow, pytest.mark.install]


@pytest.fixture(scope="module")
def environment(wheels, needed, make_environment):
    return make_environment([wheels[name] for name in needed(CHOSEN)])


@pytest.fixture(scope="module")
def strange(tmp_path_factory):
    """The wheel of a format that somebody else has made."""
    from flit_core.wheel import make_wheel_in

    folder = tmp_path_factory.mktemp("strange")
    write("format", "acme-format", folder / "project")
    return make_wheel_in(folder / "project" / "pyproject.toml", folder).file


@pytest.fixture
def words(talker):
    settings = f"train.max_steps={STEPS} train.batch_size=2 data.max_seq_len=96 checkpoint.every={EVERY}".split()
    return ["run", "--model", talker / "model", "--method", "sft", "--data", talker / "rows.jsonl", *settings]


def installed(environment):
    return {entry["distribution"] for entry in json.loads(environment.run("ernie", "plugins", "--json"))}


def killed(environment, words, place, behind):
    """Start the command, and kill it where it has a checkpoint later than step ``behind``; that checkpoint's step."""
    command = [str(environment.home / "bin" / "ernie"), *map(str, words)]
    process = subprocess.Popen(command, cwd=place, env=environment.variables, stdout=subprocess.DEVNULL)
    while (last := newest(place)) <= behind:
        assert process.poll() is None, "ended by itself"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    return last


def newest(place):
    written = place.glob("runs/*/ckpt/step-*/MANIFEST.json")
    return max(
        (json.loads(path.read_bytes())["step"] for path in written if b'"complete"' in path.read_bytes()), default=0
    )


def outcome(place):
    """What must be equal to the last bit; there is one run."""
    (out,) = (place / "runs").iterdir()
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    losses = {event["step"]: (event["loss"], event["grad_norm"]) for event in events if event["event"] == "step"}
    starts = sum(event["event"] == "run_start" for event in events)
    return losses, (out / "model" / "model.safetensors").read_bytes(), starts


def test_plugins_come_and_go_while_a_run_is_stopped(environment, strange, wheels, words, tmp_path):
    straight, place = tmp_path / "straight", tmp_path / "killed"
    straight.mkdir()
    place.mkdir()
    environment.run("ernie", *words, cwd=straight)
    assert installed(environment) == {*CHOSEN}
    first = killed(environment, words, place, 0)
    environment.install(strange)
    assert installed(environment) == {*CHOSEN, "erniecore-acme-format"}
    second = killed(environment, words, place, first)
    assert first < second < STEPS
    environment.remove("erniecore-acme-format")
    environment.install("--no-deps", wheels["erniecore-muon"])
    assert installed(environment) == {*CHOSEN, "erniecore-muon"}
    said = environment.run("ernie", *words, cwd=place, stream="stderr")
    assert "the unfinished run of this command" in said
    losses, weights, starts = outcome(place)
    assert sorted(losses) == list(range(1, STEPS + 1))
    assert (losses, weights) == outcome(straight)[:2]
    assert starts == 3
    (resolved,) = place.glob("runs/*/resolved.yaml")
    environment.remove("erniecore-muon")
    environment.run("ernie", "run", resolved, "--out", "again", "--dry-run", cwd=place)
