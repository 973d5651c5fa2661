"""The kit's own commands keep the rules of commands, and its modules are light."""

import subprocess
import sys
from pathlib import Path

import erniecore_conformance
import pytest
from erniecore_conformance.runner import run_checks
from erniecore_conformance.subjects import Subject

#: The toys and mutants are plugins: ``plugin.py`` being light is a check of the kit, and some mutants exist to fail it.
#: Templates are other packages, and pytest loads its plugin by itself.
NOT_LIGHT = ("toys", "mutants", "scaffold/templates", "pytest_plugin.py")


@pytest.mark.parametrize("name", ["conform", "new"])
def test_conformance(name):
    outcomes = run_checks(Subject.installed("command", name))
    assert [outcome for outcome in outcomes if outcome.status not in ("passed", "skipped")] == []


def test_the_kit_imports_without_paddle():
    home = Path(erniecore_conformance.__file__).parent
    paths = [str(p.relative_to(home)) for p in home.rglob("*.py")]
    kept = [p.removesuffix(".py").replace("/", ".") for p in paths if not p.startswith(NOT_LIGHT)]
    code = (
        "import importlib, sys\n"
        f"for m in {sorted(kept)!r}:\n"
        "    importlib.import_module(f'erniecore_conformance.{m}'.removesuffix('.__init__'))\n"
        "    assert 'paddle' not in sys.modules, m\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
