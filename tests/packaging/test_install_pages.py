"""The pages about wheels are executed as written, with the wheels of this repository and without a network: a new environment
finds third-party libraries where pip would have put them.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("docs_console", ROOT / "tests" / "docs" / "console.py")
console = importlib.util.module_from_spec(_spec)
sys.modules["docs_console"] = console
_spec.loader.exec_module(console)

#: makes an environment, and lends it the libraries
PYTHON3 = """#!/bin/sh
{python} "$@" || exit
for site in "$3"/lib/python*/site-packages; do echo {libraries} > "$site/borrowed.pth"; done
"""


@pytest.fixture
def variables(tmp_path, libraries):
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python3").write_text(PYTHON3.format(python=sys.executable, libraries=libraries))
    (programs / "python3").chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "ERNIE", "COV_", "PIP_"))}
    return {
        **kept,
        "PATH": f"{programs}{os.pathsep}{kept['PATH']}",
        "HOME": str(tmp_path),
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }


@pytest.mark.install
@pytest.mark.slow
@pytest.mark.parametrize(("name", "directory"), [("install-wheels", "dist"), ("install-offline", "wheelhouse")])
def test_page_runs(name, directory, wheels, variables, tmp_path):
    page, home = ROOT / "docs" / "how-to" / f"{name}.md", tmp_path / "home"
    home.mkdir()
    (home / directory).symlink_to(wheels["erniecore"].parent)
    for step in console.steps(page):
        command = ["bash", "-euo", "pipefail", "-c", step.text]
        done = subprocess.run(command, cwd=home, env=variables, text=True, capture_output=True)
        place = f"{page.name}:{step.line}: {step.text}"
        assert done.returncode == step.exit, f"{place}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        missing = console.first_missing(step.output, (done.stdout + done.stderr).splitlines())
        assert missing is None, f"{place}\nnot printed (in this order): {missing!r}\n{done.stdout[-2000:]}"
