"""The runtime fingerprint: what is said when a run continues under another one."""

from types import SimpleNamespace

import pytest

from erniecore import kernels
from erniecore.engine.runtime import runtime_changes, runtime_fingerprint


@pytest.mark.parametrize("key", ["runtime", "circumstances"])  # the second is what 0.1.0 wrote
def test_a_change_is_named_and_an_equal_runtime_is_no_news(key):
    state = {key: {"threads": "1", "kernels": "native (all)"}}
    assert runtime_changes(state, {"threads": "1", "kernels": "native (all)"}) == ()
    (note,) = runtime_changes(state, {"threads": "2", "kernels": "native (all)"})
    assert "threads: 1 -> 2" in note
    assert "kernels" not in note


def test_the_fingerprint_holds_variables_in_force_kernels_and_facts_but_no_memory(monkeypatch):
    monkeypatch.setenv("KMP_BLOCKTIME", "7")
    device = SimpleNamespace(
        environment=lambda: {"KMP_BLOCKTIME": "1", "UNSET_HERE": "x"},
        describe=lambda: {"processor": "p", "threads": "4", "memory": "9 GiB"},
    )
    found = runtime_fingerprint(device, kernels.REFERENCES)
    assert found.pop("kernels")
    assert found == {"KMP_BLOCKTIME": "7", "UNSET_HERE": "", "processor": "p", "threads": "4"}
