"""``make demo`` installs what ``erniecore-demo`` depends on: every command that the story uses has to be among it."""

import ast
from pathlib import Path

import pytest
from erniecore_catalog.installing import in_clone
from erniecore_catalog.known import home_of
from erniecore_demo import reading, story

from erniecore.cli.app import COMMANDS

ROOT = Path(__file__).parents[4]


def used_commands(told):
    """Names such as ``run`` or ``model.init``, from the literal arguments that the calls begin with."""
    for node in ast.walk(ast.parse(Path(told.__file__).read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "id", "") in ("ernie", "ernie_json", "command")
            and node.args
        ):
            names = [a.value for a in node.args[:2] if isinstance(a, ast.Constant) and not a.value.startswith("-")]
            nested = ".".join(names)
            if names:
                yield nested if home_of("command", nested) else names[0]


@pytest.mark.parametrize("told", [story, reading], ids=["text", "vision"])
def test_every_command_of_the_story_comes_with_the_demo(told, monkeypatch):
    monkeypatch.chdir(ROOT)
    brought = {Path(folder).name.replace("_", "-") for folder in in_clone(["erniecore-demo"], ROOT, whole=True)}
    used = {name for name in used_commands(told) if name not in COMMANDS or home_of("command", name)}
    assert {"tokenizer", "model.init", "eval", "export"} <= used
    for name in used:
        assert home_of("command", name).removeprefix("erniecore-") in brought, name
