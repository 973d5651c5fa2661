"""Every console block of the README, the tutorials and the how-to pages is executed as written."""

import importlib.util
import sys
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("docs_console", Path(__file__).with_name("console.py"))
console = importlib.util.module_from_spec(_spec)
sys.modules["docs_console"] = console
_spec.loader.exec_module(console)

ROOT = console.ROOT
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs/tutorials").glob("*.md")),
    *sorted((ROOT / "docs/how-to").glob("*.md")),
]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_page_runs(page, tmp_path, warm):
    console.run_page(page, tmp_path, warm)


def test_a_wrong_page_is_noticed(tmp_path):
    page = ROOT / "docs" / "__never_written__.md"
    text = "```console\n$ echo one two\none …\n```\n"
    commands = console._commands("$ echo one two\none …\n", 1)
    assert [c.text for c in commands] == ["echo one two"], (page, text)
    assert console.first_missing(["one …"], ["one two"]) is None
    assert console.first_missing(["two"], ["one two"]) == "two"
    assert console.first_missing(["b", "a"], ["a", "b"]) == "a"
    assert console.first_missing(["a", "…", "c"], ["a", "b", "c"]) is None
