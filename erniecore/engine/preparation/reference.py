"""What a method compares the policy with: nothing, the base under the policy's adapter, or a frozen copy. Making it is
``engine/models/reference_model.py``; what a method does with it is its own matter.

What a method wants, its section says: ``MethodConfig.reference_use``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

from erniecore.capabilities import MethodCapability

if TYPE_CHECKING:
    from erniecore.sections import AdapterConfig, MethodConfig

ReferenceKind = Literal["none", "base", "copy"]


def reference_kind(method: MethodConfig, adapter: AdapterConfig | None, capabilities: Collection[str]) -> ReferenceKind:
    """``none``: the method has no reference, or looks its values up. ``base``: the model with its adapter off, which
    takes no memory. ``copy``: a frozen copy of the initial model; under an adapter, of what the adapter trains.

    Args:
        capabilities: of the method's plugin.
    """
    if MethodCapability.REFERENCE not in capabilities:
        return "none"
    use = method.reference_use()
    if use.source != "live":
        return "none"
    # an adapter that starts from a saved one is not its base at the start
    return "copy" if adapter is None or use.update_steps or adapter.starts_from() else "base"
