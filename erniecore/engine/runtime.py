"""What chooses kernels and splits sums in this process, and with that the last bits of every result: the runtime fingerprint.
A checkpoint records it, and a run that continues under another one says so. No paddle.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from erniecore import kernels
from erniecore.types.run import Device

#: key of the fingerprint in ``state.json``, and the one that 0.1.0 wrote
KEY, KEY_BEFORE = "runtime", "circumstances"


def runtime_fingerprint(device: Device, choice: kernels.Choice) -> dict[str, str]:
    """The device's variables as they are in force, the kernels, the processor or accelerator, the number of threads."""
    variables = {name: os.environ.get(name, "") for name in device.environment()}
    variables["kernels"] = kernels.described(choice)
    return {**variables, **{k: v for k, v in device.describe().items() if k != "memory"}}


def runtime_changes(state: Mapping[str, Any], now: Mapping[str, str]) -> tuple[str, ...]:
    """A note where a checkpoint with this ``state.json`` was saved under another fingerprint than ``now``."""
    before = state.get(KEY, state.get(KEY_BEFORE, {}))
    changed = [f"{k}: {before.get(k)} -> {now.get(k)}" for k in sorted({*before, *now}) if before.get(k) != now.get(k)]
    return (f"continues, but not to the last bits: {', '.join(changed)}",) if changed else ()
