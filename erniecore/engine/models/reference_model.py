"""The frozen model that a method compares its policy with: a copy of the policy, or the policy with its adapter off."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from erniecore.types.protocols import AdaptedModel

if TYPE_CHECKING:
    from erniecore.engine.preparation.reference import ReferenceKind


def make_reference(policy: Any, kind: ReferenceKind, *, adapted: bool) -> Any:
    """The reference of ``policy`` as it is now; None for ``none``.

    A copy under an adapter shares the base, of which nothing changes; an adapter that cannot be turned off has one too.
    """
    if kind == "none":
        return None
    if kind == "base" and isinstance(policy, AdaptedModel):
        return AdapterOff(policy)
    fixed = (*policy.parameters(), *policy.buffers())  # quantized values of a base are buffers
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
        with self._base() as model:
            return model.features(*args, **options)

    def logits(self, hidden: Any) -> Any:
        with self._base() as model:
            return model.logits(hidden)

    def head(self) -> Any:
        return self.policy.head()

    def parameters(self) -> list[Any]:
        """An empty list: its weights are the policy's."""
        return []

    def eval(self) -> None:
        """Nothing changes: it is always in evaluation mode."""

    def train(self) -> None:
        """A reference is not trained."""
