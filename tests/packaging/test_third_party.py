"""Plugins that somebody else makes with `ernie new plugin`, one of every kind: built, installed, listed, tested, and used
together in real runs."""

import json
import re
import shlex
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
from erniecore_conformance.scaffold.generate import write

from erniecore.cli.app import main
from erniecore.kinds import KINDS

ROOT = Path(__file__).parents[2]
ONE_FILE = sorted((ROOT / "examples" / "one_file").glob("*.py"))
EXAMPLES = [ROOT / "examples" / "third_party_plugin", ROOT / "examples" / "acme_plugin"]
WORDS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen")

pytestmark = [pytest.mark.slow, pytest.mark.install]


@pytest.fixture(scope="session")
def projects(tmp_path_factory):
    """Kind -> folder of a new plugin."""
    root = tmp_path_factory.mktemp("projects")
    for kind in KINDS:
        write(kind, f"my-{kind}", root / kind)
    return {kind: root / kind for kind in KINDS}


@pytest.fixture(scope="session")
def made_of_files(tmp_path_factory):
    """Projects of `ernie new plugin --from FILE`: a reward function, a reader and a callback."""
    root = tmp_path_factory.mktemp("made-of-files")
    for file in ONE_FILE:
        assert main(["new", "plugin", "--from", str(file), "--out", str(root / file.stem)]) == 0
    return [root / file.stem for file in ONE_FILE]


@pytest.fixture(scope="session")
def environment(projects, made_of_files, wheels, make_environment, tmp_path_factory):
    from flit_core.wheel import make_wheel_in

    out = tmp_path_factory.mktemp("third-party-wheels")
    folders = (*projects.values(), *made_of_files, *EXAMPLES)
    built = [make_wheel_in(folder / "pyproject.toml", out).file for folder in folders]
    return make_environment([*wheels.values(), *built])


@pytest.fixture(scope="session")
def base(environment, tmp_path_factory):
    """Folder with rows, a tokenizer and a new model of the third party's kind."""
    folder = tmp_path_factory.mktemp("base")
    texts = [(f"Say {WORDS[i % 8]} {i % 5 + 1} times.", " ".join([WORDS[i % 8]] * (i % 5 + 1))) for i in range(64)]
    rows = [json.dumps({"question": question, "answer": answer}) for question, answer in texts]
    (folder / "rows.jsonl").write_text("".join(row + "\n" for row in rows))
    (folder / "text.txt").write_text("".join(f"{question} {answer}\n" for question, answer in texts))
    environment.run("ernie", "tokenizer", "train", "text.txt", "--vocab-size", 320, "--out", "tokenizer", cwd=folder)
    words = ("--model", "my-model", "--size", "tiny", "--tokenizer", "tokenizer", "--out", "model")
    environment.run("ernie", "model", "init", *words, cwd=folder)
    return folder


@pytest.fixture(scope="session")
def finished(environment, base):
    """Run directory of a run with a plugin of every kind that a run can have but the adapter."""
    command = """
        ernie run --model model --device my-device --parallel my-parallel --quantizer my-quantizer --method my-method
        --callback my-callback --format my-format --data rows.jsonl --out run train.max_steps=30 train.batch_size=2
        train.learning_rate=0.01 data.packing=none method.label_smoothing=0.1
    """
    environment.run(*shlex.split(command), cwd=base)
    return base / "run"


def events(run, kind):
    found = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [event for event in found if event["event"] == kind]


def test_all_are_listed(environment):
    listed = json.loads(environment.run("ernie", "plugins", "--json"))
    mine = {(e["kind"], e["name"], e["distribution"], e["status"]) for e in listed if "my-" in e["name"]}
    assert mine == {(kind, f"my-{kind}", f"erniecore-my-{kind}", "ok") for kind in KINDS}


def test_plugin_files_became_distributions(environment, tmp_path):
    listed = json.loads(environment.run("ernie", "plugins", "--json"))
    found = {(e["kind"], e["name"], e["distribution"], e["status"]) for e in listed}
    ours = {("callback", "best-loss"), ("reader", "ini"), ("reward", "shorter")}
    assert {(kind, name, f"erniecore-{name}", "ok") for kind, name in ours} <= found
    (tmp_path / "rows.ini").write_text("[one]\ninstruction = 2+2?\noutput = 4\n")
    report = json.loads(environment.run("ernie", "data", "check", "rows.ini", "--json", cwd=tmp_path))
    assert (report["rows"], report["kept"]) == (1, 1)


def test_their_own_tests_pass(environment, projects, made_of_files):
    """Conformance checks included: one process for all, because paddle is imported once."""
    folders = [str(folder / "tests") for folder in (*projects.values(), *made_of_files, *EXAMPLES)]
    words = ("-m", "pytest", "--import-mode=importlib", "-p", "no:cacheprovider", "-q", "-W", "ignore")
    out = environment.run("python", *words, *folders, cwd=projects["model"].parent)
    assert re.search(r"^\d{3} passed", out, re.MULTILINE), out[-500:]


def test_the_example_is_listed(environment):
    listed = json.loads(environment.run("ernie", "plugins", "--json", "--kind", "method"))
    assert ("focal", "erniecore-focal") in {(entry["name"], entry["distribution"]) for entry in listed}


def test_acme_is_one_distribution_with_three_plugins(environment):
    listed = json.loads(environment.run("ernie", "plugins", "--json"))
    mine = {(e["kind"], e["name"], e["status"]) for e in listed if e["distribution"] == "erniecore-acme"}
    assert mine == {("model", "acme-lm", "ok"), ("method", "acme-dpo", "ok"), ("device", "acme-npu", "ok")}


def test_acmes_method_trains_acmes_model(environment, base):
    pairs = [{"question": f"Say {w}.", "good": f"{w} {w}", "bad": "no"} for w in WORDS] * 4
    rows = [{"instruction": p["question"], "chosen": p["good"], "rejected": p["bad"]} for p in pairs]
    (base / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    init = "ernie model init --model acme-lm --size tiny --tokenizer tokenizer --out acme"
    environment.run(*shlex.split(init), cwd=base)
    run = """
        ernie run --model acme --method acme-dpo method.margin=0.2 --data pairs.jsonl --out acme-run train.max_steps=12
        train.batch_size=2 train.learning_rate=0.01
    """
    environment.run(*shlex.split(run), cwd=base)
    losses = [event["loss"] for event in events(base / "acme-run", "step")]
    assert losses[-1] < losses[0] - 0.1


def test_acmes_accelerator_is_refused(environment, base):
    words = (
        "ernie run --model acme --method acme-dpo --device acme-npu --data pairs.jsonl --out nowhere train.max_steps=1"
    )
    environment.run(*shlex.split(words), cwd=base, status=3)


def test_conform_on_the_command_line(environment):
    out = environment.run("ernie", "conform", "format", "my-format", "--json")
    assert json.loads(out)["ok"]


def test_a_run_uses_them_and_learns(finished):
    (start,) = events(finished, "run_start")
    assert {kind: name for kind, name in start["plugins"].items() if name == f"my-{kind}"} == {
        kind: f"my-{kind}" for kind in ("device", "parallel", "model", "quantizer", "method")
    }
    losses = [event["loss"] for event in events(finished, "step")]
    assert len(losses) == 30
    assert losses[-1] < losses[0] - 1


def test_callback_wrote_every_step(finished):
    lines = (finished / "my-callback.csv").read_text().splitlines()
    assert lines[0] == "step,loss,lr,grad_norm"
    assert [line.split(",")[0] for line in lines[1:]] == [str(step) for step in range(1, 31)]


def test_exporter_writes_the_trained_model(environment, finished, tmp_path):
    import numpy as np

    environment.run("ernie", "export", finished / "model", "--to", "my-exporter", "--out", tmp_path / "archive")
    with np.load(tmp_path / "archive" / "weights.npz", allow_pickle=False) as arrays:
        assert arrays["lm_head.weight"].shape == (320, 64)


def test_command_reads_the_run(environment, finished):
    answer = json.loads(environment.run("ernie", "my-command", finished, "--json"))
    assert answer["steps"] == 30
    assert answer["last"] == events(finished, "step")[-1]["loss"]


def test_server_answers(environment, finished):
    words = ("serve", "--model", finished, "--backend", "my-server", "port=0")
    command = [str(environment.home / "bin" / "ernie"), *map(str, words)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment.variables, stdout=pipe, stderr=pipe, text=True) as server:
        try:
            url = re.search(r"http://\S+/generate", server.stdout.readline())[0]
            body = json.dumps({"prompt": "Say ant", "max_new_tokens": 3}).encode()
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(urllib.request.Request(url, data=body), timeout=120) as response:
                answer = json.loads(response.read())
        finally:
            server.send_signal(signal.SIGINT)
    assert 1 <= answer["tokens"] <= 3
    assert server.returncode == 0


def test_adapter_trains_few_weights(environment, base):
    command = """
        ernie run --model model --adapter my-adapter --method my-method --format my-format --data rows.jsonl
        --out adapted train.max_steps=30 train.batch_size=4 train.learning_rate=0.05 data.packing=none
    """
    environment.run(*shlex.split(command), cwd=base)
    losses = [event["loss"] for event in events(base / "adapted", "step")]
    assert len(losses) == 30
    assert sum(losses[-5:]) < sum(losses[:5])


def test_same_weights_without_the_third_party_are_refused(environment, wheels, needed, make_environment, finished):
    names = needed(["erniecore", "erniecore-ernie45", "erniecore-chat"])
    alone = make_environment([wheels[name] for name in sorted(names)])
    out = alone.run("ernie", "generate", "--model", finished / "model", "--prompt", "x", "--json", status=2)
    assert "my_model" in out
