"""The core stays small: its lines in all, and those that a training run imports."""

import json
import os
import subprocess
import sys
from pathlib import Path

from talker import talker as talker  # the fixture

CORE = Path(__file__).parents[2] / "erniecore"
#: lines of Python in the core, and of those what a run with the callbacks console and events imports
MOST, MOST_IN_A_RUN = 25_000, 17_000

#: everything that the built-ins do in one process: a file of settings, evaluation, checkpoints, the model at the end
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
    erniecore.run(sys.argv[1])
    files = {getattr(m, "__file__", None) for n, m in list(sys.modules.items()) if n.split(".")[0] == "erniecore"}
    print(json.dumps(sorted(f for f in files if f)))
"""


def lines_of(files):
    return sum(len(Path(file).read_text(encoding="utf-8").splitlines()) for file in files)


def test_the_core_fits_its_budget():
    sizes = {path.name: lines_of(path.rglob("*.py")) for path in CORE.iterdir() if path.is_dir()}
    assert lines_of(CORE.rglob("*.py")) <= MOST, sizes


def test_what_a_training_run_imports_fits_its_budget(talker, tmp_path):
    out = tmp_path / "run"
    (tmp_path / "run.yaml").write_text(SETTINGS.format(home=talker, out=out))
    (tmp_path / "train.py").write_text(RUN)
    environ = {**os.environ, "ERNIE_PLUGINS": "ernie45,sft,formats,erniecore-formats"}
    done = subprocess.run(
        [sys.executable, tmp_path / "train.py", tmp_path / "run.yaml"], capture_output=True, text=True, env=environ
    )
    assert done.returncode == 0, done.stderr[-2000:]
    files = [file for file in json.loads(done.stdout.splitlines()[-1]) if Path(file).is_relative_to(CORE)]
    assert len(files) > 100
    assert lines_of(files) <= MOST_IN_A_RUN, f"{lines_of(files)} lines in {len(files)} files"
    assert "\nsave   step 2 " in done.stdout  # the console was on
    assert [path.name for path in sorted((out / "ckpt").glob("step-*"))] == ["step-00000002", "step-00000004"]
    events = [json.loads(line)["event"] for line in (out / "events.jsonl").read_text().splitlines()]
    assert events.count("eval") == 2
    assert (out / "model" / "config.json").is_file()
