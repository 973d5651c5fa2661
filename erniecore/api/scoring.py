"""Building block for commands: the loss and the metrics of a method on batches, as a run evaluates. Imports Paddle."""

from erniecore.engine.scoring.evaluate import measure

__all__ = ["measure"]
