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

RUN = """
import json, sys
from pathlib import Path
import erniecore
if __name__ == "__main__":
    erniecore.run(overrides=json.loads(sys.argv[1]), console="none")
    files = {getattr(m, "__file__", None) for n, m in list(sys.modules.items()) if n.split(".")[0] == "erniecore"}
    print(json.dumps(sorted(f for f in files if f)))
"""


def lines_of(files):
    return sum(len(Path(file).read_text(encoding="utf-8").splitlines()) for file in files)


def test_the_core_fits_its_budget():
    sizes = {path.name: lines_of(path.rglob("*.py")) for path in CORE.iterdir() if path.is_dir()}
    assert lines_of(CORE.rglob("*.py")) <= MOST, sizes


def test_what_a_training_run_imports_fits_its_budget(talker, tmp_path):
    settings = {
        "model.path": talker / "model",
        "method.name": "sft",
        "data.train": talker / "rows.jsonl",
        "data.max_seq_len": 96,
        "train.max_steps": 2,
        "train.batch_size": 2,
        "log.report": "false",
        "run.out": tmp_path / "run",
    }
    overrides = json.dumps([f"{key}={value}" for key, value in settings.items()])
    (tmp_path / "train.py").write_text(RUN)
    environ = {**os.environ, "ERNIE_PLUGINS": "ernie45,sft,formats,erniecore-formats"}
    done = subprocess.run(
        [sys.executable, tmp_path / "train.py", overrides], capture_output=True, text=True, env=environ
    )
    assert done.returncode == 0, done.stderr[-2000:]
    files = [file for file in json.loads(done.stdout.splitlines()[-1]) if Path(file).is_relative_to(CORE)]
    assert len(files) > 100
    assert lines_of(files) <= MOST_IN_A_RUN, len(files)
    assert (tmp_path / "run" / "model" / "config.json").is_file()
