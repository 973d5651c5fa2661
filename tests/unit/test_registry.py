"""Finding plugins in metadata and loading exactly one of them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from erniecore_catalog import install_command
from erniecore_catalog import offers as installed
from erniecore_catalog.known import known, summary_of
from hypothesis import given
from hypothesis import strategies as st

import erniecore
from erniecore import plugin_entry, registry
from erniecore.errors import PluginBroken, PluginConflict, PluginIncompatible, PluginNotFound, UsageError
from erniecore.kinds import KINDS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PLUGIN = """
    from erniecore.api import Plugin
    class P(Plugin):
        kind, name, summary = "callback", "{name}", "for tests"
    plugin = P()
"""
GROUP = "erniecore.callbacks"


def callback(site, name, module=None, *, dist=None, source=None, **more):
    module = module or f"cb_{name.replace('-', '_')}"
    source = PLUGIN.format(name=name) if source is None else source
    return site.add(dist or f"dist-{name}", {GROUP: {name: f"{module}:plugin"}}, {f"{module}.py": source}, **more)


def found(kind="callback"):
    return {e.name: e for e in registry.entries(kind)}


def test_entries_say_what_metadata_say(site):
    callback(site, "one", dist="Some_Dist", version="2.5")
    entry = found()["one"]
    assert (entry.kind, entry.target, entry.status) == ("callback", "cb_one:plugin", "ok")
    assert (entry.distribution, entry.version, entry.requires_core) == ("some-dist", "2.5", ">=0.1,<0.2")


def test_listing_imports_nothing(site):
    callback(site, "bomb", source="raise SystemExit('imported')")
    assert found()["bomb"].status == "ok"
    assert "cb_bomb" not in sys.modules


def test_a_manager_offers_what_may_be_loaded_and_loads_what_is_named(site):
    callback(site, "one")
    callback(site, "old", requires=("erniecore>=0.2",), source="raise RuntimeError")
    for dist in ("dist-a", "dist-b"):
        callback(site, "same", module=dist.replace("-", "_"), dist=dist, source="raise RuntimeError")
    manager = registry.KindManager("callback", ["one"])
    offered = set(manager.entry_points_names())
    assert {"one", "console"} <= offered
    assert not {"old", "same"} & offered
    assert manager.names() == ["one"]
    assert {"one", "old", "same", "console"} <= {e.name for e in manager.entries}


def test_load_returns_the_object(site):
    callback(site, "one")
    assert repr(registry.load("callback", "one")) == "<callback plugin 'one'>"


def test_load_imports_only_what_is_named(site):
    callback(site, "one")
    callback(site, "bomb", source="raise RuntimeError")
    registry.load("callback", "one")
    assert "cb_bomb" not in sys.modules


def test_a_plugin_installed_after_the_first_listing_is_found(site):
    registry.entries("callback")
    callback(site, "late")
    assert registry.load("callback", "late").name == "late"


def test_a_plugin_that_is_removed_is_gone(site):
    callback(site, "gone")
    assert "gone" in found()
    shutil.rmtree(site.path / "dist_gone-1.0.dist-info")
    assert "gone" not in found()


def test_metadata_are_read_once_for_many_questions(site):
    callback(site, "one")
    before = installed._read.cache_info().misses
    for kind in KINDS:
        registry.entries(kind)
    assert installed._read.cache_info().misses == before + 1


def test_unknown_kind_has_the_nearest():
    with pytest.raises(UsageError, match="did you mean model"):
        registry.entries("modle")


def test_unknown_name_lists_the_installed_and_the_nearest(site):
    callback(site, "profiler")
    with pytest.raises(PluginNotFound, match="did you mean profiler") as caught:
        registry.load("callback", "profilr")
    assert "profiler" in caught.value.expected
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["ernie45-moe", "ernie45-mo"])
def test_a_model_of_ours_that_is_not_installed_names_its_distribution(monkeypatch, name):
    """Also where a plugin with a similar name is installed."""
    monkeypatch.setenv("ERNIE_PLUGINS", "ernie45")
    with pytest.raises(PluginNotFound) as caught:
        registry.load("model", name)
    meant = "" if name == "ernie45-moe" else "did you mean ernie45-moe? "
    assert caught.value.fix == f"{meant}it comes with erniecore-ernie45-moe"
    assert caught.value.next == install_command("erniecore-ernie45-moe")


def test_a_dissimilar_name_gets_no_suggestion(site):
    with pytest.raises(PluginNotFound) as caught:
        registry.load("device", "tpu")
    assert caught.value.fix == ""


def test_a_name_of_another_kind_says_so(toys):
    with pytest.raises(PluginNotFound) as caught:
        registry.load("model", "prefer")
    assert caught.value.fix == "'prefer' is a method, not a model: --method prefer"


def test_a_known_plugin_that_is_not_installed_has_its_pip_line(site, monkeypatch):
    monkeypatch.setattr(registry, "home_of", lambda kind, name: f"erniecore-{name}")
    with pytest.raises(PluginNotFound) as caught:
        registry.load("device", "tpu")
    assert caught.value.next == install_command("erniecore-tpu")


def test_conflict_names_both_and_imports_neither(site):
    for dist in ("dist-a", "dist-b"):
        callback(site, "same", module=dist.replace("-", "_"), dist=dist, source="raise RuntimeError")
    assert found()["same"].status == "conflict"
    with pytest.raises(PluginConflict) as caught:
        registry.load("callback", "same")
    assert "dist-a 1.0 (dist_a:plugin)" in caught.value.found
    assert caught.value.fix == "choose one: dist-a:same or dist-b:same"
    assert not {"dist_a", "dist_b"} & set(sys.modules)


def test_conflict_is_resolved_by_the_distribution(site):
    callback(site, "same", module="dist_a", dist="dist-a", source="raise RuntimeError")
    callback(site, "same", module="dist_b", dist="dist-b")
    assert registry.load("callback", "Dist.B:same").name == "same"


@pytest.mark.parametrize(
    ("requires", "status"),
    [
        ((), "ok"),
        (("erniecore",), "ok"),
        (("erniecore>=0.1,<0.2",), "ok"),
        (("erniecore (>=0.1)",), "ok"),
        (("erniecore[cpu]>=0.1",), "ok"),
        (("erniecore-ernie45>=7", "erniecore>=0.1"), "ok"),
        (("erniecore>=7; extra == 'dev'", "erniecore<1"), "ok"),
        (("erniecore>=0.2",), "incompatible"),
        (("numpy", "ErnieCore<0.1",), "incompatible"),
        (("erniecore[cpu]>=0.2 ; python_version > '3'",), "incompatible"),
        (("erniecore>=banana",), "incompatible"),
    ],
)  # fmt: skip
def test_status_comes_from_the_required_core(site, requires, status):
    callback(site, "one", requires=requires)
    assert found()["one"].status == status


def test_incompatible_is_refused_before_import(site):
    callback(site, "old", requires=("erniecore>=0.2,<0.3",), source="raise RuntimeError")
    with pytest.raises(PluginIncompatible) as caught:
        registry.load("callback", "old")
    assert caught.value.expected == "erniecore >=0.2,<0.3"
    assert caught.value.found == f"erniecore {erniecore.__version__}"
    assert "cb_old" not in sys.modules


BROKEN = {
    "raises": ("raise ValueError('no accelerator')", "ValueError: no accelerator"),
    "exits": ("import sys; sys.exit('bye')", "SystemExit: bye"),
    "missing": ("import no_such_module_here", "ModuleNotFoundError"),
    "nameless": ("x = 1", "AttributeError"),
    "class": (PLUGIN.format(name="bad").replace("plugin = P()", "plugin = P"), "is the class P"),
    "other": ("plugin = 7", "is of type int"),
    "name": (PLUGIN.format(name="good"), "calls itself callback 'good'"),
    "kind": (PLUGIN.format(name="bad").replace('"callback"', '"method"'), "calls itself method 'bad'"),
}


@pytest.mark.parametrize(("source", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_says_whose_it_is(site, source, message):
    callback(site, "bad", source=source, dist="evil", version="6.6")
    with pytest.raises(PluginBroken, match=message) as caught:
        registry.load("callback", "bad")
    assert caught.value.where == "evil 6.6 (cb_bad:plugin)"


def test_broken_chains_the_cause(site):
    callback(site, "bad", source="raise ValueError('no accelerator')")
    with pytest.raises(PluginBroken) as caught:
        registry.load("callback", "bad")
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("allowed", ["one", "dist-one", " one , three"])
def test_allow_list_hides_others_but_the_core(site, monkeypatch, allowed):
    callback(site, "one")
    callback(site, "two")
    monkeypatch.setenv("ERNIE_PLUGINS", allowed)
    assert set(found()) == {"one", "console", "events"}


def test_known_toml_is_toml():
    data = tomllib.loads((ROOT / "plugins/libraries/catalog/erniecore_catalog/known.toml").read_text())
    lines, model_types = data.pop("help"), data.pop("model_type")
    assert set(data.pop("kernels_for").values()) == set(data["kernels"].values())
    assert known() == {(kind, name): dist for kind, names in data.items() for name, dist in names.items()}
    assert set(lines) == set(data["command"])
    assert set(model_types.values()) == set(data["model"].values())
    assert all(summary_of(name) == line != "" for name, line in lines.items())


def test_known_toml_lists_what_the_repository_holds():
    groups = {kind.group: kind.name for kind in KINDS.values()}
    kept = {}
    for file in (*ROOT.glob("plugins/*/*/pyproject.toml"), ROOT / "third_party_kernels/pyproject.toml"):
        project = tomllib.loads(file.read_text())["project"]
        for group, points in project.get("entry-points", {}).items():
            kept.update({(groups[group], name): project["name"] for name in points if group in groups})
    assert known() == kept


def test_metadata_need_no_pydantic_numpy_yaml_or_paddle():
    code = (
        "import sys; from erniecore import registry; from erniecore.kinds import KINDS\n"
        "[registry.entries(k) for k in KINDS]\n"
        "print([m for m in ('paddle', 'numpy', 'pydantic', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@given(st.text(st.characters(codec="ascii", exclude_characters="\n\r"), max_size=30))
def test_any_requirement_text_has_a_status(text):
    plugin_entry._accepts_core(registry._requires_core((text,)))


CAPABLE = """
from erniecore.api import Plugin
from erniecore.api.quantizer import QuantizerCapability, QuantizerConfig
from erniecore.api.export import ExporterCapability
class P(Plugin):
    kind, name, summary, Config = "quantizer", "able", "for tests", QuantizerConfig
    capabilities = frozenset({%s})
plugin = P()
"""


def capable(site, said):
    files = {"quant_able.py": CAPABLE % said}
    site.add("dist-able", {"erniecore.quantizers": {"able": "quant_able:plugin"}}, files)


def test_capabilities_of_the_kind_load(site):
    capable(site, "QuantizerCapability.TRAIN, QuantizerCapability.EXPORT")
    assert "train" in registry.load("quantizer", "able").capabilities


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("'trian'", "did you mean train?"),
        ("'train'", "write QuantizerCapability.TRAIN"),
        ("ExporterCapability.PACKED", ""),
    ],
)
def test_unknown_capabilities_are_refused(site, said, fix):
    capable(site, said)
    with pytest.raises(PluginBroken) as caught:
        registry.load("quantizer", "able")
    assert caught.value.fix == fix
    assert caught.value.expected == "one of train, export, trainable, calibrate, empty"


def test_kinds_without_capabilities_have_none(site):
    source = CAPABLE.replace('"quantizer"', '"schedule"') % "QuantizerCapability.TRAIN"
    site.add("dist-cb", {"erniecore.schedules": {"able": "cb_able:plugin"}}, {"cb_able.py": source})
    with pytest.raises(PluginBroken, match="no schedule can have") as caught:
        registry.load("schedule", "able")
    assert "has no capabilities" in caught.value.expected


def test_settings_of_a_kind_derive_from_its_base(site):
    source = CAPABLE.replace(", Config = ", ", Other = ") % ""
    site.add("dist-able", {"erniecore.quantizers": {"able": "quant_able:plugin"}}, {"quant_able.py": source})
    with pytest.raises(PluginBroken, match="do not derive from QuantizerConfig") as caught:
        registry.load("quantizer", "able")
    assert caught.value.fix == "from erniecore.api.quantizer import QuantizerConfig"
