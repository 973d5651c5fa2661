"""Generated pages are up to date, and every hook is documented with its exact arguments."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

from erniecore import hookspecs

ROOT = Path(__file__).parents[2]


def test_pages_are_fresh():
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_hook_says_when_and_how():
    """A hook's docstring is its contract; build hooks that a plugin provides also show an example."""
    for specs in (hookspecs.BuildSpecs, hookspecs.LifecycleSpecs):
        for name, function in vars(specs).items():
            if name.startswith("ernie_"):
                text = inspect.getdoc(function) or ""
                assert re.search(r"[.!]$", text.strip().split("\n\n")[0].strip()), f"{name}: no sentence"
                arguments = [a for a in inspect.signature(function).parameters if a != "self"]
                assert len(arguments) <= 4, f"{name} takes {len(arguments)} arguments"
