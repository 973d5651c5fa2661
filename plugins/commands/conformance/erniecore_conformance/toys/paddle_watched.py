"""A policy that cuts the graph below the head and keeps the hidden states, to see which positions a loss touches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from erniecore.api.model import Features
from erniecore_conformance.toys.paddle_lm import ToyLM, toy_model

if TYPE_CHECKING:
    from erniecore.api.testing import Tensor


class WatchedPolicy(ToyLM):
    """The toy model with seed 0; every ``features`` call returns a fresh leaf."""

    def __init__(self) -> None:
        super().__init__()
        self.set_state_dict(toy_model().state_dict())
        self.seen: list[tuple[Any, Tensor]] = []

    def features(self, input_ids: Tensor, **options: Any) -> Features:
        """As the toy model's, detached from what is below."""
        hidden = super().features(input_ids, **options).hidden.detach()
        hidden.stop_gradient = False
        self.seen.append((input_ids.numpy(), hidden))
        return Features(hidden)

    def hidden_gradients(self) -> list[tuple[Any, Any]]:
        """(ids [B, S], gradient [B, S, H]) of every call that got one."""
        return [(ids, hidden.grad.numpy()) for ids, hidden in self.seen if hidden.grad is not None]
