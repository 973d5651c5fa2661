"""What a method compares the policy with: nothing, the base under the policy's adapter, or a frozen copy. Which of them
a run needs is known before paddle is imported. What a method does with it is its own matter.

Three settings of a method say what it wants, where its section has them: ``reference_free``, ``reference:
precomputed`` and ``reference_update_steps``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from erniecore.config.compose import Loaded

Kind = Literal["none", "base", "copy"]


def reference_kind(loaded: Loaded) -> Kind:
    """``none``: the method has no reference, or looks its values up. ``base``: the model with its adapter off, which
    takes no memory. ``copy``: a frozen copy of the initial model; under an adapter, of what the adapter trains."""
    method, adapter = loaded.settings.method, loaded.settings.adapter
    if "reference" not in loaded.plugins["method"].capabilities or getattr(method, "reference_free", False):
        return "none"
    if getattr(method, "reference", "live") == "precomputed":
        return "none"
    # an adapter that starts from a saved one is not its base at the start
    moves, starts_elsewhere = getattr(method, "reference_update_steps", 0), getattr(adapter, "path", "")
    return "copy" if adapter is None or moves or starts_elsewhere else "base"


def make_reference(policy: Any, kind: Kind, *, adapted: bool) -> Any:
    """The reference of ``policy`` as it is now; None for ``none``.

    A copy under an adapter shares the base, of which nothing changes; an adapter that cannot be turned off has one too.
    """
    if kind == "none":
        return None
    if kind == "base" and hasattr(policy, "adapter_off"):
        return AdapterOff(policy)
    fixed = (*policy.parameters(), *policy.buffers())  # codes of a quantised base are buffers
    shared = {id(tensor): tensor for tensor in fixed if tensor.stop_gradient} if adapted else {}
    reference = copy.deepcopy(policy, shared)
    reference.eval()
    for parameter in reference.parameters():
        parameter.stop_gradient = True
    return reference


class AdapterOff:
    """A policy's base as a model of its own, always in evaluation mode: what a ``CausalLM`` computes, and no weights."""

    training = False

    def __init__(self, policy: Any) -> None:
        self.policy, self.architecture = policy, policy.architecture

    @contextmanager
    def _base(self) -> Iterator[Any]:
        training = self.policy.training
        self.policy.eval()
        try:
            with self.policy.adapter_off():
                yield self.policy
        finally:
            if training:
                self.policy.train()

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Logits."""
        with self._base() as model:
            return model(*args, **options)

    def features(self, *args: Any, **options: Any) -> Any:
        """See ``erniecore.api.CausalLM``."""
        with self._base() as model:
            return model.features(*args, **options)

    def logits(self, hidden: Any) -> Any:
        """See ``erniecore.api.CausalLM``."""
        with self._base() as model:
            return model.logits(hidden)

    def head(self) -> Any:
        """See ``erniecore.api.CausalLM``."""
        return self.policy.head()

    def parameters(self) -> list[Any]:
        """None of its own."""
        return []

    def eval(self) -> None:
        """It is."""

    def train(self) -> None:
        """A reference is not trained."""
