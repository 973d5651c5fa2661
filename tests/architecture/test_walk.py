"""A straight run: the settings and a batch reach few functions, and nobody in the engine takes settings without a type."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("walk", Path(__file__).with_name("walk.py"))
tool = sys.modules["walk"] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tool)
#: given the object, but not followed: what they are is below
LEFT = {
    "erniecore.builtin.console: _displays.pop",  # a dictionary by run
    "erniecore.config.absent_model: replace",  # dataclasses.replace
    "erniecore.engine.preparation.forecast: replace",  # the same
    "erniecore.host: dict.fromkeys",  # the arguments of ernie_check_settings
}


@pytest.fixture(scope="module")
def code():
    return tool.read()


@pytest.fixture(scope="module", params=list(tool.WALKS))
def found(request, code):
    return tool.walk(request.param, code)


def test_the_walk_is_short(found):
    assert 20 < len(found.stops) <= 80, "\n".join(tool.picture(found))
    assert len(found.files) <= 35


def test_every_call_that_is_given_the_object_is_followed(found):
    assert found.lost <= LEFT


def test_the_picture_fits_a_screen(found):
    picture = tool.picture(found)
    assert len(picture) <= 50
    assert max(map(len, picture)) <= tool.COLUMNS


def test_the_settings_reach_the_model_and_the_checkpoint(code):
    names = {tool.label(stop) for stop in tool.walk("settings", code).stops}
    assert {"run", "prepare", "build", "build_model", "Trainer.__init__", "export_model"} <= names


def test_a_batch_reaches_the_loss(code):
    names = {tool.label(stop) for stop in tool.walk("batch", code).stops}
    assert {"Trainer._step", "DataLoader.step", "collate", "forward_backward", "NextTokenObjective.__call__"} <= names


def test_the_tool_counts_what_is_handed_on(tmp_path):
    package = tmp_path / "erniecore"
    package.mkdir()
    (package / "types.py").write_text(
        "class Loaded:\n    settings: Settings\n    name: str\n\nclass Settings:\n    x: int\n"
    )
    (package / "more.py").write_text(
        "from erniecore.types import Loaded, Settings\n"
        "class Keeper:\n"
        "    def __init__(self, settings: Settings):\n        self._settings = settings\n"
        "    def reads(self):\n        return self._settings.x\n"
        "    def rests(self):\n        return 1\n"
        "def load() -> Loaded: ...\n"
        "def section(x: int): ...\n"
        "def passed(anything):\n    deeper(anything.settings)\n"
        "def deeper(settings): section(settings.x)\n"
        "def never(loaded: Loaded): ...\n"
    )
    (package / "start.py").write_text(
        "from erniecore import more\n"
        "from erniecore.more import Keeper, load\n"
        "def start():\n"
        "    loaded = load()\n    more.passed(loaded)\n"
        "    keeper = Keeper(loaded.settings)\n    keeper.reads()\n    keeper.rests()\n    unknown(loaded)\n"
    )
    code = tool.Code(tmp_path, ("erniecore",))
    found = tool.Walk(code, "erniecore.start:start", ("Loaded", "Settings"), False)
    names = [tool.label(stop) for stop in found.stops]
    assert names == ["start", "passed", "deeper", "Keeper.__init__", "Keeper.reads"]
    assert found.lost == {"erniecore.start: unknown"}


def test_settings_have_a_type_in_the_engine():
    untyped = []
    for file in sorted((ROOT / "erniecore" / "engine").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.FunctionDef):
                continue
            for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                is_any = isinstance(argument.annotation, ast.Name) and argument.annotation.id == "Any"
                if is_any and argument.arg in ("settings", "config", "section", "loaded", "context"):
                    untyped.append(f"{file.relative_to(ROOT)}: {node.name}({argument.arg}: Any)")
    assert not untyped, untyped
