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
#: these need wheels: tests/packaging/test_install_pages.py
PAGES = [page for page in PAGES if page.name not in ("install-wheels.md", "install-offline.md")]


def pages(part):
    """A third of the pages, because a class is what one of several test processes takes."""
    return pytest.mark.parametrize("page", PAGES[part::3], ids=lambda p: str(p.relative_to(ROOT)))


class Pages:
    def test_page_runs(self, page, tmp_path, warm, request):
        console.run_page(page, tmp_path, warm, whole=request.config.getoption("--all-combinations"))


@pytest.mark.slow
@pages(0)
class TestFirstPages(Pages):
    pass


@pytest.mark.slow
@pages(1)
class TestSecondPages(Pages):
    pass


@pytest.mark.slow
@pages(2)
class TestThirdPages(Pages):
    pass


def test_runs_are_shortened_only_where_a_page_says_so(tmp_path):
    (tmp_path / "page.md").write_text(
        "<!-- shorter: train.max_steps=3 -->\n```console\n$ ernie version\n$ ernie run a.yaml \\\n  b=1\n```\n"
        "```console\n$ ernie run a.yaml\n```\n"
    )
    assert [(step.text, step.shorter) for step in console.steps(tmp_path / "page.md")] == [
        ("ernie version", ""),
        ("ernie run a.yaml \\\n  b=1", "ernie run a.yaml \\\n  b=1 train.max_steps=3"),
        ("ernie run a.yaml", ""),
    ]
    with pytest.raises(ValueError, match="could shorten"):
        console._shorten(console._commands("$ ernie eval\n", 1), "train.max_steps=3", 1)


def test_a_wrong_page_is_noticed(tmp_path):
    page = ROOT / "docs" / "__never_written__.md"
    text = "```console\n$ echo one two\none …\n```\n"
    commands = console._commands("$ echo one two\none …\n", 1)
    assert [c.text for c in commands] == ["echo one two"], (page, text)
    assert console.first_missing(["one …"], ["one two"]) is None
    assert console.first_missing(["two"], ["one two"]) == "two"
    assert console.first_missing(["b", "a"], ["a", "b"]) == "a"
    assert console.first_missing(["a", "…", "c"], ["a", "b", "c"]) is None
