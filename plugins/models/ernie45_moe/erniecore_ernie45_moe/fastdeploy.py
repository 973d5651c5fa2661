"""What FastDeploy calls when it starts; see ``erniecore_ernie45.fastdeploy``."""

from __future__ import annotations

from collections.abc import Mapping

from erniecore_ernie45.fastdeploy import Known, register_architectures

ARCHITECTURES: Mapping[str, Known] = {"Ernie4_5_MoeForCausalLM": Known((), "ernie4_5_moe")}


def register() -> None:
    """Called by FastDeploy, without arguments."""
    register_architectures(ARCHITECTURES)
