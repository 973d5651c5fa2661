"""Devices and plugins as the doctor sees them, with devices that pretend."""

import pytest
from erniecore_accelerators import Accelerator, AcceleratorConfig, Profile, Variable
from erniecore_doctor import devices, plugins
from erniecore_doctor.tools import Accelerators

from erniecore.api import install_command
from erniecore.api.device import Cluster

PROFILE = Profile(
    name="toy",
    title="Toy accelerator",
    place="toy",
    packages=(("paddlepaddle-toy", "PaddlePaddle for toys"),),
    install="pip install paddlepaddle-toy",
    monitor="toy-smi",
    visible="TOY_VISIBLE",
    collectives="TCCL",
    dtypes=frozenset({"float32"}),
    variables={"TOY_MODE": Variable("1", "plays"), "TOY_BLOCK": Variable("0", "does not wait")},
    evidence="none",
)


def device(installed=()):
    return Accelerator(PROFILE, AcceleratorConfig(), Cluster(), installed=lambda name: name in installed)


def test_a_device_that_is_not_here_is_no_problem_but_tells_how_to_get_it():
    found = devices.preflight_finding("toy", device(), None, wanted=False)
    assert (found.level, found.remedy) == ("ok", "pip install paddlepaddle-toy")
    assert found.message.startswith(devices.ABSENT)


def test_a_device_whose_packages_are_missing_is_a_warning():
    assert devices.preflight_finding("toy", device(), Accelerators("toy-smi", "1.0"), wanted=False).level == "warning"


def test_the_device_that_was_asked_for_is_a_problem():
    found = devices.preflight_finding("toy", device(), None, wanted=True)
    assert (found.level, found.remedy) == ("problem", "pip install paddlepaddle-toy")


def test_a_device_with_its_packages_is_fine():
    assert devices.preflight_finding("toy", device(["paddlepaddle-toy"]), None, wanted=True).level == "ok"


def test_variables_that_differ_are_told_and_the_rest_listed():
    found = list(devices.environment_findings("toy", device(), {"TOY_MODE": "7"}))
    assert [(f.name, f.level) for f in found] == [("TOY_MODE", "warning"), ("toy", "ok")]
    assert "TOY_BLOCK=0" in found[1].message
    assert "TOY_MODE" not in found[1].message


def test_variables_that_are_as_wanted_are_no_news():
    assert list(devices.environment_findings("toy", device(), {"TOY_MODE": "1", "TOY_BLOCK": "0"})) == []


@pytest.mark.slow
def test_opening_happens_in_another_process():
    found = devices.opened("cpu")
    assert found.level == "ok"
    assert "threads" in found.message


def test_opening_a_device_that_is_not_here_quotes_its_vendor():
    found = devices.opened("metax")
    assert found.level == "problem"
    assert "paddle-metax-gpu" in found.remedy


def test_a_library_that_kills_its_process_is_told(site, monkeypatch):
    source = """
        import os
        from erniecore.api import hookimpl
        from erniecore.api.device import DeviceConfig, DevicePlugin
        class Config(DeviceConfig):
            "none"
        class P(DevicePlugin):
            name, summary, Config = "crash", "dies", Config
            @hookimpl
            def ernie_open_device(self, config, cluster):
                os._exit(11)
        plugin = P()
    """
    site.add("erniecore-crash", {"erniecore.devices": {"crash": "crash_device:plugin"}}, {"crash_device.py": source})
    monkeypatch.setenv("PYTHONPATH", str(site.path))
    found = devices.opened("crash")
    assert found.level == "problem"
    assert "exit 11" in found.message


def test_a_broken_plugin_is_named_with_its_distribution(site):
    site.add("erniecore-broken", {"erniecore.methods": {"broken": "broken_method:plugin"}}, {"broken_method.py": "1/0"})
    found = [f for f in plugins.plugin_findings() if f.name == "method broken"]
    assert [f.level for f in found] == ["problem"]
    assert "erniecore-broken 1.0" in found[0].message
    assert "ZeroDivisionError" in found[0].message


def test_a_plugin_for_another_core_is_named(site):
    site.add("erniecore-old", {"erniecore.methods": {"old": "old:plugin"}}, {"old.py": ""}, requires=("erniecore<0.1",))
    found = [f for f in plugins.plugin_findings() if f.name == "method old"]
    assert [f.level for f in found] == ["problem"]


def test_a_distribution_of_ours_of_another_version_is_a_warning():
    found = list(plugins.version_findings(core="9.9.9"))
    assert found
    assert {f.level for f in found} == {"warning"}
    assert list(plugins.version_findings()) == []


def test_optional_packages_say_what_they_are_for():
    table = {"no-such-package": ("flying", "wings"), "pytest": ("testing", "pytest")}
    missing, there = plugins.optional_findings(table)
    assert (missing.level, missing.remedy) == ("warning", install_command("wings"))
    assert there.level == "ok"
