"""The plugins keep the rules that their kinds keep, and planning is light."""

import subprocess
import sys
from pathlib import Path

import erniecore_planner
from erniecore_conformance import parametrize_checks


@parametrize_checks("forecaster", "planner")
def test_conformance_of_planner(check):
    check()


@parametrize_checks("command", "plan")
def test_conformance_of_plan(check):
    check()


@parametrize_checks("command", "bench")
def test_conformance_of_bench(check):
    check()


def test_every_module_imports_without_paddle():
    names = sorted(path.stem for path in Path(erniecore_planner.__file__).parent.glob("[a-z]*.py"))
    code = (
        "import importlib, sys\n"
        f"for m in {names!r}:\n"
        "    importlib.import_module(f'erniecore_planner.{m}')\n"
        "    assert 'paddle' not in sys.modules, m\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
