"""The loss of supervised fine-tuning: mean negative log-likelihood of the loss tokens of the assistant's turns."""

from __future__ import annotations

from erniecore.api.training import NextTokenObjective


class SftObjective(NextTokenObjective):
    """The loss that all methods of next-token prediction share; the encoder's labels say what is learned."""
