"""Made-up distributions for tests of the registry, the settings and commands: real metadata, real imports."""

import os
import sys
import textwrap
from pathlib import Path

import pytest


class Site:
    """A directory on ``sys.path`` that holds installed distributions."""

    def __init__(self, path):
        self.path = Path(path)

    def add(self, distribution, points, files=None, *, version="1.0", requires=("erniecore>=0.1,<0.2",)):
        """Install a distribution: ``points`` is {group: {name: target}}, ``files`` {relative path: source}."""
        info = self.path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {distribution}", f"Version: {version}"]
        (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {r}" for r in requires), ""]))
        text = "".join(
            f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in names.items())
            for group, names in points.items()
        )
        (info / "entry_points.txt").write_text(text)
        for name, source in (files or {}).items():
            target = self.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(textwrap.dedent(source))
        return self

    def environ(self, **more):
        """Variables for a subprocess that sees these distributions, without settings of the caller."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("ERNIE_")}
        return {**kept, "PYTHONPATH": str(self.path), "NO_COLOR": "1", **more}


@pytest.fixture
def site(tmp_path_factory, monkeypatch):
    """An empty :class:`Site`; what tests import from it is forgotten afterwards."""
    path = tmp_path_factory.mktemp("site")
    for name in [n for n in os.environ if n.startswith("ERNIE_")]:
        monkeypatch.delenv(name)
    monkeypatch.syspath_prepend(str(path))
    before = set(sys.modules)
    yield Site(path)
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(path)):
            del sys.modules[name]


TOYS = """
    from erniecore.api import ConfigError, Field, Plugin, Section, hookimpl
    from erniecore.api.adapter import AdapterConfig, AdapterPlugin
    from erniecore.api.data import FormatConfig, FormatPlugin
    from erniecore.api.method import MethodConfig, MethodPlugin
    from erniecore.api.model import ModelConfig, ModelPlugin

    class ToyModel(ModelPlugin):
        name, summary, Config = "toy", "a model for tests", ModelConfig
        model_types, recipes = ("toy_type",), "toys.recipes"
        @hookimpl
        def ernie_read_architecture(self, config): return config.architecture
        @hookimpl
        def ernie_build_model(self, architecture): raise AssertionError
        @hookimpl
        def ernie_model_layout(self): raise AssertionError
        @hookimpl
        def ernie_state_adapter(self): raise AssertionError
        @hookimpl
        def ernie_build_tokenizer(self): raise AssertionError

    class PreferConfig(MethodConfig):
        beta: float = Field(0.1, gt=0, description="Strength of the preference.")
        label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="Share of wrong labels.")

    class Prefer(MethodPlugin):
        name, summary, Config = "prefer", "a method for tests", PreferConfig
        @hookimpl
        def ernie_build_objective(self): raise AssertionError
        @hookimpl
        def ernie_build_encoder(self): raise AssertionError
        @hookimpl
        def ernie_check_settings(self, settings):
            if settings.train.batch_size == 13:
                raise ConfigError.at("train.batch_size", "13 does not work with prefer")

    class PlainConfig(MethodConfig):
        neftune: float = Field(0.0, ge=0, description="Noise.")

    class Plain(Prefer):
        name, Config = "plain", PlainConfig

    class RankConfig(AdapterConfig):
        rank: int = Field(8, ge=1, description="Rank.")

    class Low(AdapterPlugin):
        name, summary, Config = "low", "an adapter for tests", RankConfig
        @hookimpl
        def ernie_adapt_model(self, model): return model

    class WatchConfig(Section):
        port: int = Field(80, ge=1, description="Port.")

    class Watch(Plugin):
        kind, name, summary, Config = "callback", "watch", "a callback for tests", WatchConfig

    class RowsConfig(FormatConfig):
        column: str = Field("text", description="Column.")

    class Rows(FormatPlugin):
        name, summary, Config = "rows", "a format for tests", RowsConfig
        @hookimpl
        def ernie_match_row(self, row): return True
        @hookimpl
        def ernie_parse_row(self, row): return row

    model, prefer, plain, low, watch, rows = ToyModel(), Prefer(), Plain(), Low(), Watch(), Rows()
"""

SMALL = """
    train: {learning_rate: 2e-3, batch_size: 2}
    model:
      architecture: {model_type: toy_type, hidden_size: 16, num_layers: 2}
"""


@pytest.fixture
def toys(site):
    """A distribution with one plugin of most kinds: model toy (recipe small), methods prefer and plain, adapter low,
    callback watch, format rows."""
    points = {
        "erniecore.models": {"toy": "toys.plugin:model"},
        "erniecore.methods": {"prefer": "toys.plugin:prefer", "plain": "toys.plugin:plain"},
        "erniecore.adapters": {"low": "toys.plugin:low"},
        "erniecore.callbacks": {"watch": "toys.plugin:watch"},
        "erniecore.formats": {"rows": "toys.plugin:rows"},
    }
    files = {
        "toys/__init__.py": "",
        "toys/plugin.py": TOYS,
        "toys/recipes/__init__.py": "",
        "toys/recipes/small.yaml": SMALL,
    }
    return site.add("toys", points, files)
