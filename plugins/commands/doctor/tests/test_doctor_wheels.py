"""What the doctor says of distributions that provide paddle."""

import pytest
from erniecore_doctor import wheels
from erniecore_doctor.tools import Accelerators

RANGE = ">=3.3,<3.4"


def levels(findings):
    return [(f.name, f.level) for f in findings]


def test_one_wheel_in_the_range_is_fine():
    found = wheels.paddle_findings({"paddlepaddle": "3.3.1"}, RANGE)
    assert levels(found) == [("distribution", "ok"), ("version", "ok")]


def test_no_wheel_names_the_command_that_installs_one():
    (found,) = wheels.paddle_findings({}, RANGE)
    assert found.level == "problem"
    assert f"install 'paddlepaddle{RANGE}'" in found.remedy


def test_two_wheels_are_both_named_and_removed():
    (found,) = wheels.paddle_findings({"paddlepaddle": "3.3.1", "paddlepaddle-gpu": "3.3.0"}, RANGE)
    assert found.level == "problem"
    assert "paddlepaddle 3.3.1, paddlepaddle-gpu 3.3.0" in found.message
    assert found.remedy.startswith("pip uninstall -y paddlepaddle paddlepaddle-gpu")


def test_a_device_plugin_beside_the_wheel_is_no_rival():
    found = wheels.paddle_findings({"paddlepaddle": "3.3.1", "paddle-custom-npu": "3.3.0"}, RANGE)
    assert levels(found) == [("distribution", "ok"), ("version", "ok")]


@pytest.mark.parametrize("version", ["3.2.2", "3.4.0", "2.6.2"])
def test_a_version_outside_of_the_range_is_a_problem(version):
    _, found = wheels.paddle_findings({"paddlepaddle": version}, RANGE)
    assert found.level == "problem"
    assert found.remedy.endswith(f"install 'paddlepaddle{RANGE}'")


def test_a_vendor_that_dictates_an_old_version_gets_a_warning():
    _, found = wheels.paddle_findings({"paddlepaddle": "3.1.0a0", "paddle-iluvatar-gpu": "3.1.1"}, RANGE)
    assert found.level == "warning"
    assert "paddle-iluvatar-gpu" in found.remedy


@pytest.mark.parametrize(
    ("wheel", "driver", "level"),
    [
        ("12.6", "12.8", "ok"),
        ("12.6", "12.6", "ok"),
        ("12.6", "13.0", "ok"),
        ("12.9", "12.4", "warning"),
        ("13.0", "12.9", "problem"),
        ("11.8", "11.4", "warning"),
    ],
)
def test_wheel_and_driver_of_other_cuda_versions(wheel, driver, level):
    (found,) = wheels.cuda_findings(wheel, Accelerators("nvidia-smi", "550.54", driver))
    assert found.level == level
    assert wheel in found.message
    assert driver in found.message


def test_a_wheel_for_cuda_without_a_driver_is_a_problem():
    (found,) = wheels.cuda_findings("12.6", None)
    assert found.level == "problem"


def test_a_wheel_without_cuda_needs_no_driver():
    assert list(wheels.cuda_findings("", Accelerators("nvidia-smi", "550.54", "12.4"))) == []


def test_the_supported_range_is_that_of_the_extra():
    assert wheels.supported_range() == RANGE


def test_the_cuda_of_a_wheel_is_read_from_its_version_file(site):
    source = "full_version = '3.3.0'\ncuda_version     = '12.6'\n"
    site.add("paddlepaddle-gpu", {}, {"paddle/version/__init__.py": source}, version="3.3.0", requires=())
    assert wheels.built_for_cuda("paddlepaddle-gpu") == "12.6"


def test_the_wheel_for_processors_says_that_it_has_no_cuda():
    assert wheels.built_for_cuda("paddlepaddle") == ""
