"""Random kills of random ranks: nothing unloadable, nothing hangs, the same last bits. The long version, with users'
processes, is ``benchmarks/kill_loop.py``."""

import json
import subprocess
import sys

import forked
import pytest

#: name -> processes, kills, steps that leave room for them, settings
LAYOUTS = {
    "alone": (1, 9, 80, {}),
    "data": (2, 5, 50, {"parallel__name": "hybrid", "parallel__data": 2}),
}


@pytest.mark.multiproc
@pytest.mark.slow
def test_killed_runs_end_as_if_nothing_had_happened(words, tmp_path):
    cases = [
        {
            "words": words(tmp_path / name, train__max_steps=steps, checkpoint__every=2, **layout),
            "out": str(tmp_path / name),
            "straight": str(tmp_path / f"{name}-straight"),
            "count": count,
            "kills": kills,
            "seed": 5,
            "longest": 10,
            "steps": steps,
        }
        for name, (count, kills, steps, layout) in LAYOUTS.items()
    ]
    command = [sys.executable, forked.__file__, json.dumps({"cases": cases})]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    reports = json.loads(outcome.stdout.splitlines()[-1])
    print(reports)
    assert all(r["unloadable"] == r["hangs"] == [] and r["equal"] for r in reports), reports
    assert sum(r["kills"] for r in reports) >= 14
