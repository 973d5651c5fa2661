"""The core stays small: its lines in all, and those that a training run imports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from talker import talker as talker  # the fixture

CORE = Path(__file__).parents[2] / "erniecore"
#: lines of Python in the core, and of those what a run with the callbacks console and events imports
MOST, MOST_IN_A_RUN = 25_000, 17_000
#: of a run from a file that evaluates and saves while it trains
MOST_WITH_ALL = 17_500

WORDS = (
    "model.path={home}/model method=sft callbacks=[console,events] data.train={home}/rows.jsonl data.max_seq_len=96 "
    "train.max_steps=4 train.batch_size=2 run.out={out}"
)
SETTINGS = """
model: {{path: {home}/model}}
method: sft
callbacks: [console, events]
data: {{train: {home}/rows.jsonl, eval: {home}/rows.jsonl, max_seq_len: 96}}
train: {{max_steps: 4, batch_size: 2}}
eval: {{every: 2}}
checkpoint: {{every: 2, export: true}}
run: {{out: {out}}}
"""
RUN = """
import json, sys
from pathlib import Path
import erniecore
if __name__ == "__main__":
    erniecore.run(sys.argv[1] or None, sys.argv[2:])
    files = {getattr(m, "__file__", None) for n, m in list(sys.modules.items()) if n.split(".")[0] == "erniecore"}
    print(json.dumps(sorted(f for f in files if f)))
"""


def lines_of(files):
    return sum(len(Path(file).read_text(encoding="utf-8").splitlines()) for file in files)


def test_the_core_fits_its_budget():
    sizes = {path.name: lines_of(path.rglob("*.py")) for path in CORE.iterdir() if path.is_dir()}
    assert lines_of(CORE.rglob("*.py")) <= MOST, sizes


@pytest.fixture
def imported(talker, tmp_path):
    """``imported(words, settings)``: the run's directory, what it printed, and the lines of the core that it imported."""

    def run(words="", settings=""):
        out, file = tmp_path / "run", ""
        (tmp_path / "train.py").write_text(RUN)
        if settings:
            file = tmp_path / "run.yaml"
            file.write_text(settings.format(home=talker, out=out))
        words = [file, *words.format(home=talker, out=out).split()]
        environ = {**os.environ, "ERNIE_PLUGINS": "ernie45,sft,formats,erniecore-formats"}
        command = [sys.executable, tmp_path / "train.py", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environ)
        assert done.returncode == 0, done.stderr[-2000:]
        files = [file for file in json.loads(done.stdout.splitlines()[-1]) if Path(file).is_relative_to(CORE)]
        assert len(files) > 100
        return out, done.stdout, lines_of(files)

    return run


def test_what_a_training_run_imports_fits_its_budget(imported):
    out, _, lines = imported(words=WORDS)
    assert lines <= MOST_IN_A_RUN
    assert (out / "model" / "config.json").is_file()


def test_what_a_run_with_evaluation_and_checkpoints_imports_fits_its_budget(imported):
    out, printed, lines = imported(settings=SETTINGS)
    assert lines <= MOST_WITH_ALL
    assert "\nsave   step 2 " in printed  # the console was on
    assert [path.name for path in sorted((out / "ckpt").glob("step-*"))] == ["step-00000002", "step-00000004"]
    events = [json.loads(line)["event"] for line in (out / "events.jsonl").read_text().splitlines()]
    assert events.count("eval") == 2
    assert (out / "model" / "config.json").is_file()
