"""Runs with kernels and without: what is said about them, and that they learn the same."""

import numpy as np
import pytest
from erniecore_catalog import install_command

from erniecore import kernels

NATIVE = pytest.mark.skipif(not kernels.choose("cpu", {}).sets, reason="no kernels are installed")
NONE = {f"device__kernels__{operator}": "reference" for operator in kernels.OPERATORS}


def losses(result):
    return [event["loss"] for event in result.events if event["event"] == "step"]


@NATIVE
def test_kernels_are_named_and_learn_what_the_reference_learns(runner):
    fast = runner.run(train__max_steps=12, run__out=runner.home / "fast")
    slow = runner.run(train__max_steps=12, run__out=runner.home / "slow", **NONE)
    np.testing.assert_allclose(losses(fast), losses(slow), rtol=0, atol=1e-4)
    for result, name in ((fast, "native"), (slow, "reference")):
        assert set(result.events[0]["kernels"].values()) == {name}
        assert f"# kernels: {name} (all)" in (result.out / "resolved.yaml").read_text()


@NATIVE
def test_one_operator_can_be_taken_out(runner):
    result = runner.run(train__max_steps=1, device__kernels__rope="reference")
    assert result.events[0]["kernels"]["rope"] == "reference"
    assert result.events[0]["kernels"]["swiglu"] == "native"
    text = (result.out / "resolved.yaml").read_text()
    assert "rope: reference" in text
    assert "rope=reference" in text


@NATIVE
def test_a_library_that_was_not_built_is_a_warning(runner, monkeypatch):
    from ernie_third_party_kernels import library

    monkeypatch.setattr(library, "usable", lambda *_: [])
    result = runner.run(train__max_steps=1)
    assert set(result.events[0]["kernels"].values()) == {"reference"}
    warnings = [event["message"] for event in result.events if event["event"] == "warning"]
    assert any("native" in message and "compiler" in message for message in warnings)


def test_a_run_without_kernels_says_so_once(runner, monkeypatch):
    monkeypatch.setattr(kernels, "installed", lambda: ({}, []))
    result = runner.run(train__max_steps=1)
    said = f"the reference operators run, which are slower: {install_command('ernie-third-party-kernels')}"
    warnings = [event["message"] for event in result.events if event["event"] == "warning"]
    assert len([message for message in warnings if said in message]) == 1
