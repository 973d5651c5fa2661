"""FastDeploy's entry point, against a stand-in that has the three functions of its registry which are used."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

FAKE = """
class ModelRegistry:
    classes, modules = {}, {}

    @classmethod
    def get_supported_archs(cls):
        return list(cls.classes)

    @classmethod
    def get_class(cls, name):
        return cls.classes[name]

    @classmethod
    def register_model_class(cls, model_class=None, *, architecture=None, module_name=None):
        def register(model):
            cls.classes[architecture], cls.modules[architecture] = model, module_name
            return model
        return register
"""


@pytest.fixture
def served(tmp_path, monkeypatch):
    """The stand-in's registry; ``served.classes`` is what it serves."""
    place = tmp_path / "fastdeploy" / "model_executor" / "models"
    place.mkdir(parents=True)
    for folder in (place, place.parent, place.parent.parent):
        (folder / "__init__.py").write_text("")
    (place / "model_base.py").write_text(FAKE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import fastdeploy.model_executor.models.model_base as base

    yield base.ModelRegistry
    for name in [name for name in sys.modules if name.partition(".")[0] == "fastdeploy"]:
        del sys.modules[name]


def plugins():
    return {entry.name: entry.load() for entry in entry_points(group="fastdeploy.model_register_plugins")}


def test_an_older_name_serves_what_we_export(served):
    served.classes |= {"Ernie4_5_ForCausalLM": "dense", "Ernie4_5_MoeForCausalLM": "moe"}
    for function in plugins().values():
        function()
    assert served.classes["Ernie4_5ForCausalLM"] == "dense"
    assert served.modules == {"Ernie4_5ForCausalLM": "ernie4_5_moe"}


def test_what_is_known_is_left_alone(served):
    served.classes |= {"Ernie4_5ForCausalLM": "own", "Ernie4_5_ForCausalLM": "older", "Ernie4_5_MoeForCausalLM": "moe"}
    for function in plugins().values():
        function()
    assert served.classes["Ernie4_5ForCausalLM"] == "own"
    assert not served.modules


def test_what_is_served_by_no_name_is_told(served):
    with pytest.warns(UserWarning, match="Ernie4_5_MoeForCausalLM"):
        plugins()["erniecore-ernie45-moe"]()


def test_nothing_happens_without_fastdeploy_and_nothing_heavy_is_imported():
    code = (
        "import sys; from importlib.metadata import entry_points\n"
        "for e in entry_points(group='fastdeploy.model_register_plugins'): e.load()()\n"
        "print(sorted({'paddle', 'numpy', 'fastdeploy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_both_model_plugins_declare_it():
    assert {"erniecore-ernie45", "erniecore-ernie45-moe"} <= set(plugins())
