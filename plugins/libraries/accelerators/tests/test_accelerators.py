"""What the device plugins for accelerators do where there is no accelerator, and with a paddle that pretends to have one."""

import json
import types

import pytest
from erniecore_accelerators import Accelerator, AcceleratorConfig, Profile, Variable

from erniecore import registry
from erniecore.abilities import ABILITIES
from erniecore.errors import ConfigError, DeviceUnavailable
from erniecore.types.run import Cluster

NAMES = ("cuda", "iluvatar", "metax", "npu", "xpu")


def profile(**changes):
    plain = {
        "name": "toy",
        "title": "Toy accelerator",
        "place": "toy",
        "packages": (("paddlepaddle-toy", "PaddlePaddle for toys"),),
        "install": "pip install paddlepaddle-toy",
        "monitor": "toy-smi",
        "visible": "TOY_VISIBLE",
        "collectives": "TCCL",
        "dtypes": frozenset({"float32"}),
        "evidence": "none",
    }
    return Profile(**{**plain, **changes})


def device(installed=("paddlepaddle-toy",), index=-1, local_rank=0, **changes):
    cluster = Cluster(local_rank=local_rank)
    return Accelerator(
        profile(**changes),
        AcceleratorConfig(index=index),
        cluster,
        installed=lambda name: name in installed,
    )


class FakePaddle(types.SimpleNamespace):
    """Knows ``count`` accelerators of the custom device ``toy``; remembers which one is set."""

    def __init__(self, count):
        accelerators = [f"toy:{i}" for i in range(count)]
        super().__init__(
            __version__="3.3.1",
            chosen=[],
            device=types.SimpleNamespace(
                get_all_custom_device_type=lambda: ["toy"] if count else [],
                get_available_custom_device=lambda: accelerators,
            ),
        )
        self.set_device = self.chosen.append


@pytest.fixture
def with_accelerators(monkeypatch):
    """``with_accelerators(n)``: the next ``import paddle`` sees n accelerators."""

    def install(count):
        fake = FakePaddle(count)
        monkeypatch.setitem(__import__("sys").modules, "paddle", fake)
        return fake

    return install


def test_missing_package_is_named_with_the_vendors_command():
    with pytest.raises(DeviceUnavailable, match="packages are not installed") as caught:
        device(installed=()).preflight()
    assert caught.value.expected == "paddlepaddle-toy (PaddlePaddle for toys)"
    assert caught.value.fix == "pip install paddlepaddle-toy"


def test_two_distributions_of_paddle_are_refused():
    both = device(installed=("paddlepaddle-toy", "paddlepaddle"), excludes=("paddlepaddle",))
    with pytest.raises(DeviceUnavailable, match="the same package") as caught:
        both.preflight()
    assert "pip uninstall -y paddlepaddle" in caught.value.fix


def test_paddle_without_this_device_is_refused(with_accelerators):
    with_accelerators(0)
    with pytest.raises(DeviceUnavailable, match="not built for it"):
        device().open()


@pytest.mark.parametrize(("index", "local_rank", "chosen"), [(-1, 0, "toy:0"), (-1, 1, "toy:1"), (0, 1, "toy:0")])
def test_the_rank_takes_its_own_accelerator_unless_told(with_accelerators, index, local_rank, chosen):
    fake = with_accelerators(2)
    device(index=index, local_rank=local_rank).open()
    assert fake.chosen == [chosen]


def test_an_accelerator_that_is_not_there_is_refused_with_the_tool_that_lists_them(with_accelerators):
    fake = with_accelerators(2)
    with pytest.raises(DeviceUnavailable, match="no such device") as caught:
        device(local_rank=2).open()
    assert "toy-smi" in caught.value.fix
    assert "TOY_VISIBLE" in caught.value.fix
    assert fake.chosen == []


def test_what_nobody_has_shown_is_said():
    (warning,) = device().warnings()
    assert "has not been shown" in warning
    assert device(repeats=True).warnings() == []
    assert not device(repeats=False).deterministic


def test_variables_for_repeatable_results_can_be_left_out():
    variables = {"B": Variable("1", "always"), "A": Variable("2", "bits", deterministic=True)}
    assert list(device(variables=variables).environment().items()) == [("A", "2"), ("B", "1")]
    free = Accelerator(profile(variables=variables), AcceleratorConfig(repeatable=False), Cluster())
    assert free.environment() == {"B": "1"}
    assert not free.deterministic


def test_several_processes_name_their_accelerator_and_a_plug_in_device_its_backend():
    kinds = {
        place: profile(place=place, compiled=compiled) for place, compiled in (("gpu", "is_compiled"), ("npu", ""))
    }
    found = {
        place: Accelerator(kind, AcceleratorConfig(), Cluster(rank=5, world_size=8, local_rank=1)).environment()
        for place, kind in kinds.items()
    }
    assert found["gpu"]["FLAGS_selected_gpus"] == found["npu"]["FLAGS_selected_npus"] == "1"
    assert found["npu"]["PADDLE_DISTRI_BACKEND"] == "xccl"
    assert "PADDLE_DISTRI_BACKEND" not in found["gpu"]


def test_abilities_have_names():
    with pytest.raises(ValueError, match="fp9"):
        profile(lacks={"fp9": "use fp8"})


@pytest.mark.parametrize("name", NAMES)
def test_profiles_are_complete(name):
    found = registry.load("device", name).profile
    assert (found.name, found.install[:12]) == (name, "pip install ")
    assert all(isinstance(v, Variable) and v.value and v.why for v in found.variables.values())
    assert found.lacks.keys() <= ABILITIES.keys()
    assert all(accelerator.source for accelerator in found.accelerators.values())
    assert not [v for v in found.variables.values() if "eth" in v.value or "/" in v.value]


@pytest.mark.parametrize("name", NAMES)
def test_readme_says_what_ran(name):
    from pathlib import Path

    text = (Path(__file__).parents[4] / "plugins" / "devices" / name / "README.md").read_text().lower()
    assert registry.load("device", name).profile.evidence.rstrip(".").lower() in text


def test_a_plugin_that_needs_what_the_device_lacks_is_refused_by_name():
    from erniecore.engine.preparation.checks import check_abilities

    plugins, names = {"quantizer": types.SimpleNamespace(needs=frozenset({"fp8"}))}, {"quantizer": "fp8-qat"}
    with pytest.raises(ConfigError, match="quantizer fp8-qat needs numbers and matrix products in float8") as caught:
        check_abilities(plugins, names, device(lacks={"fp8": "train in bfloat16"}))
    assert "train in bfloat16" in str(caught.value)
    check_abilities(plugins, names, device())


@pytest.mark.parametrize("quantizer", ["fp8-qat", "fp8-block", "fp8-ptq"])
def test_directories_in_fp8_are_refused_where_a_device_has_none(quantizer, tmp_path):
    """Also outside of runs: what a quantizer of ours wrote says who it was."""
    from erniecore.engine.models.config_json import quantized_by
    from erniecore.engine.models.quantized import check_device

    (tmp_path / "config.json").write_text(json.dumps(quantized_by({}, quantizer, {})))
    xpu = registry.load("device", "xpu").profile
    with pytest.raises(ConfigError, match=f"quantizer {quantizer} needs .*which device xpu lacks: train in bfloat16"):
        check_device(tmp_path, xpu)
    check_device(tmp_path, device())


@pytest.mark.parametrize("quantizer", ["wint8", "w8a8-qat", "w8a8", "kv-cache"])
def test_integers_need_nothing_of_a_device(quantizer):
    assert not registry.load("quantizer", quantizer).needs
