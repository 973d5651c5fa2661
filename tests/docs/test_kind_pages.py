"""Every folder of plugins says what its kind is: the hooks, the base classes, and an example that is a plugin."""

import re
from pathlib import Path

import pytest

from erniecore.host import assemble
from erniecore.kinds import KINDS
from erniecore.plugin import Plugin

ROOT = Path(__file__).parents[2]
FOLDERS = sorted({p.parents[1] for p in ROOT.glob("plugins/*/*/pyproject.toml")})
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def kind_of(folder):
    """The kind whose plugins are in a folder, by the names of their groups; none for libraries."""
    return next((kind for kind in KINDS.values() if kind.group.rpartition(".")[2] == folder.name), None)


def example(folder):
    """What the one example of the page defines."""
    (source,) = BLOCK.findall((folder / "README.md").read_text(encoding="utf-8"))
    names = {"__name__": "example"}
    exec(compile(source, str(folder / "README.md"), "exec"), names)
    return names


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
def test_the_page_names_the_hooks_of_its_kind(folder):
    text, kind = (folder / "README.md").read_text(encoding="utf-8"), kind_of(folder)
    assert kind or folder.name == "libraries"
    missing = [hook for hook in (kind.hooks if kind else ()) if hook not in text]
    assert not missing
    assert not kind or f"ernie new plugin --kind {kind.name}" in text


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
def test_the_example_is_a_plugin_of_the_kind(folder):
    names, kind = example(folder), kind_of(folder)
    if kind is None:
        return
    if kind.name == "command":
        assert callable(names["command"])
        return
    plugin = names["plugin"]
    assert isinstance(plugin, Plugin)
    assert plugin.kind == kind.name
    assert all(hasattr(plugin, hook) for hook in kind.hooks)
    assemble({kind.name: plugin})  # raises where a hook is unknown or takes what it is not given
