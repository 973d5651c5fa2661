"""The registry of kernels: what is chosen, what is refused, and what a chosen kernel stands in for."""

import re
from types import SimpleNamespace

import pytest
from erniecore_catalog import install_command
from erniecore_ops.kernels import replaceable

from erniecore import kernels
from erniecore.errors import ConfigError
from erniecore.plugin import KernelSet


class Fake(KernelSet):
    """Kernels that answer with their own name."""

    summary = "kernels for tests"

    devices = frozenset({"cpu"})

    def __init__(self, name, operators=("rope",), fault="", error=None, supports=True, on_request=""):
        self.name, self.operators, self.on_request = name, dict.fromkeys(operators, ("float32",)), on_request
        self._fault, self._error, self._supports = fault, error, supports

    def fault(self):
        return self._fault

    def load(self, operator, threads):
        if self._error:
            raise self._error
        kernel = SimpleNamespace(run=lambda *args: self.name, supports=lambda *args: self._supports)
        return dict.fromkeys(kernels.OPERATORS[operator], kernel)


@pytest.fixture
def installed(monkeypatch):
    """A function that says which kernel sets are installed."""

    def install(*sets):
        monkeypatch.setattr(kernels, "installed", lambda: ({s.name: s for s in sets}, []))

    yield install
    kernels.use(kernels.REFERENCES, lambda: 1)


@replaceable
def rotate(x):
    return "reference"


def test_without_kernels_everything_is_the_reference(installed):
    installed()
    choice = kernels.choose("cpu", {})
    assert set(choice.names.values()) == {"reference"}
    assert choice.names.keys() == kernels.OPERATORS.keys()
    assert kernels.described(choice) == "reference (all)"
    (said,) = choice.warnings
    assert said.endswith(f"are slower: {install_command('ernie-third-party-kernels')}")


@pytest.mark.parametrize(("device", "asked"), [("xpu", {}), ("cpu", dict.fromkeys(kernels.OPERATORS, "reference"))])
def test_nothing_is_said_where_no_kernels_are_to_be_had_or_wanted(installed, device, asked):
    installed()
    assert not kernels.choose(device, asked).warnings


def test_an_installed_kernel_is_taken_for_the_operators_that_it_has(installed):
    installed(Fake("fast"))
    choice = kernels.choose("cpu", {})
    assert {operator for operator, name in choice.names.items() if name == "fast"} == {"rope"}
    assert rotate(1) == "reference", "nothing happens before the device is open"
    assert kernels.use(choice, lambda: 1) == []
    assert rotate(1) == "fast"
    kernels.use(kernels.REFERENCES, lambda: 1)
    assert rotate(1) == "reference"


def test_the_settings_have_the_last_word(installed):
    installed(Fake("fast"))
    choice = kernels.choose("cpu", {"rope": "reference"})
    kernels.use(choice, lambda: 1)
    assert rotate(1) == "reference"


def test_kernels_are_for_their_devices_only(installed):
    installed(Fake("fast"))
    assert set(kernels.choose("xpu", {}).names.values()) == {"reference"}


def test_calls_that_a_kernel_does_not_support_run_the_reference(installed):
    installed(Fake("fast", supports=False))
    kernels.use(kernels.choose("cpu", {}), lambda: 1)
    assert rotate(1) == "reference"


def test_kernels_that_cannot_run_are_not_silent(installed):
    installed(Fake("fast", fault="it was not built"))
    choice = kernels.choose("cpu", {})
    assert choice.names["rope"] == "reference"
    assert "fast: it was not built" in choice.warnings[0]


def test_kernels_that_cannot_run_are_refused_where_they_are_named(installed):
    installed(Fake("fast", fault="it was not built"))
    with pytest.raises(ConfigError, match=r"device\.kernels\.rope.*it was not built"):
        kernels.choose("cpu", {"rope": "fast"})


def test_a_library_that_cannot_be_loaded_is_a_warning_or_an_error(installed):
    installed(Fake("fast", error=OSError("no OpenMP")))
    (warning,) = kernels.use(kernels.choose("cpu", {}), lambda: 1)
    assert "rope" in warning
    assert "no OpenMP" in warning
    assert rotate(1) == "reference"
    with pytest.raises(ConfigError, match="no OpenMP"):
        kernels.use(kernels.choose("cpu", {"rope": "fast"}), lambda: 1)


BROKEN = """
    from erniecore.api import Plugin
    from erniecore.api.kernels import KernelSet

    class Good(KernelSet):
        name, summary, devices = "good", "kernels for tests", frozenset({"cpu"})
        operators = {"rope": ("float32",)}

    class NoSet(Plugin):
        kind, name, summary = "kernels", "none", "no kernels"

    good, none = Good(), NoSet()
"""


def test_kernel_sets_are_found_as_other_plugins_are(site):
    points = {"good": "fast:good", "none": "fast:none", "gone": "nowhere:gone"}
    site.add("fast-kernels", {"erniecore.kernels": points}, {"fast.py": BROKEN})
    sets, warnings = kernels.installed()
    assert sets["good"].operators == {"rope": ("float32",)}
    assert not {"none", "gone"} & set(sets)
    (gone, none) = (text for text in warnings if "none" in text or "gone" in text)
    assert "nowhere" in gone
    assert "is no KernelSet" in none


def test_kernels_that_are_not_installed_say_where_they_come_from(installed):
    installed()
    with pytest.raises(ConfigError, match=re.escape(install_command("ernie-third-party-kernels"))):
        kernels.choose("cpu", {"rope": "native"})


def test_a_kernel_set_has_empty_defaults():
    empty = KernelSet()
    assert (empty.kind, empty.devices, empty.operators, empty.on_request) == ("kernels", frozenset(), {}, "")
    assert empty.fault() == ""
    assert empty.load("rope", lambda: 1) == {}


def test_two_kernels_for_one_operator_must_be_told_apart(installed):
    installed(Fake("fast"), Fake("faster"))
    with pytest.raises(ConfigError, match="fast and faster"):
        kernels.choose("cpu", {})
    assert kernels.choose("cpu", {"rope": "faster"}).names["rope"] == "faster"


def test_a_set_on_request_runs_only_where_it_is_named(installed):
    installed(Fake("unproven", on_request="not run on such a device yet"))
    assert set(kernels.choose("cpu", {}).names.values()) == {"reference"}
    assert kernels.choose("cpu", {"rope": "unproven"}).names["rope"] == "unproven"


def test_a_set_on_request_that_cannot_run_is_no_news(installed):
    installed(Fake("unproven", on_request="not run on such a device yet", fault="nothing to run it with"))
    assert not kernels.choose("cpu", {}).warnings
    with pytest.raises(ConfigError, match="nothing to run it with"):
        kernels.choose("cpu", {"rope": "unproven"})


@pytest.mark.parametrize(
    ("asked", "hint"), [({"ropee": "fast"}, "rope"), ({"rope": "fsat"}, "fast"), ({"softmax": "fast"}, "reference")]
)
def test_unknown_names_get_the_nearest(installed, asked, hint):
    installed(Fake("fast"))
    with pytest.raises(ConfigError, match=hint):
        kernels.choose("cpu", asked)


def test_every_function_of_every_operator_exists():
    import sys

    from erniecore_ops import (  # noqa: F401
        _attention_plan,
        adamw,
        attention,
        bias,
        gelu,
        grouped_swiglu,
        layer_norm,
        patch_attention,
        random_values,
        rms_norm,
        rope,
        swiglu,
    )
    from erniecore_ops import functions as ops  # noqa: F401

    modules = [m for name, m in sys.modules.items() if name.startswith("erniecore_ops.")]
    for functions in kernels.OPERATORS.values():
        for name in functions:
            assert any(hasattr(getattr(m, name, None), "__wrapped__") for m in modules), name


def test_a_function_of_no_operator_cannot_be_replaceable():
    with pytest.raises(ValueError, match="belongs to no operator"):
        replaceable(lambda x: x)
