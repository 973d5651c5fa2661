"""What the doctor says of each implementation of an operator, with kernel sets that pretend."""

from types import SimpleNamespace

import pytest
from erniecore_doctor.kernels import candidates, described, findings

from erniecore import kernels
from erniecore.api import install_command
from erniecore.api.installation import OPERATORS


def kernel_set(devices=("cpu",), fault="", on_request=""):
    operators = {"rope": ("float32", "bfloat16")}
    return SimpleNamespace(
        devices=frozenset(devices), operators=operators, on_request=on_request, fault=lambda: fault, load=None
    )


@pytest.fixture
def verdict(monkeypatch):
    """A function (sets by name, what is asked) -> {implementation of rope: (chosen, reason)} on the cpu."""

    def look(sets, asked=None):
        monkeypatch.setattr(kernels, "installed", lambda: (sets, []))
        monkeypatch.setattr("erniecore_doctor.kernels.installed_kernels", lambda: (sets, []))
        rows, _ = candidates("cpu", asked or {})
        return {row.name: (row.chosen, row.reason) for row in rows if row.operator == "rope"}

    return look


def test_the_installed_kernel_is_chosen_and_the_reference_stands_by(verdict):
    found = verdict({"fast": kernel_set()})
    assert found["fast"] == (True, "the kernel that is installed for cpu")
    assert found["reference"] == (False, "fast is there; runs the calls that it does not take")


def test_without_kernels_the_reference_is_chosen(verdict):
    assert verdict({}) == {"reference": (True, "no kernel can run here")}


@pytest.mark.parametrize(
    ("others", "asked", "reason"),
    [
        ({"devices": ("cuda",)}, {}, "not for cpu"),
        ({"fault": "it was not built"}, {}, "it was not built"),
        ({}, {"rope": "reference"}, "the settings name reference"),
        ({"on_request": "never run"}, {}, "only where the settings name it: never run"),
    ],
)
def test_a_kernel_that_is_not_chosen_has_its_reason(verdict, others, asked, reason):
    found = verdict({"fast": kernel_set(**others)}, asked)
    assert found["fast"] == (False, reason)
    assert found["reference"][0]


def test_what_the_settings_name_is_chosen_for_that(verdict):
    found = verdict({"fast": kernel_set(), "other": kernel_set()}, {"rope": "other"})
    assert found["other"] == (True, "the settings name it")
    assert found["fast"] == (False, "the settings name other")


def test_every_operator_has_exactly_one_chosen_row_and_a_line(verdict):
    verdict({"fast": kernel_set()})
    rows, _ = candidates("cpu", {})
    assert sorted(row.operator for row in rows if row.chosen) == sorted(OPERATORS)
    (line,) = [described(row) for row in rows if row.chosen and row.name == "fast"]
    assert line[0] == "*"
    assert "float32, bfloat16" in line


@pytest.mark.parametrize(
    ("sets", "level", "remedy"),
    [
        ({"native": kernel_set()}, "ok", ""),
        ({"native": kernel_set(fault="it was not built")}, "warning", "--force-reinstall"),
        ({"asked-for": kernel_set(on_request="not tried")}, "warning", install_command("ernie-third-party-kernels")),
        ({}, "warning", install_command("ernie-third-party-kernels")),
    ],
)
def test_the_examination_says_what_to_do_about_missing_kernels(monkeypatch, sets, level, remedy):
    monkeypatch.setattr("erniecore_doctor.kernels.installed_kernels", lambda: (sets, []))
    (found,) = findings("cpu")
    assert found.level == level
    assert remedy in found.remedy
    assert not list(findings("xpu"))
