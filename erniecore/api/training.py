"""Building block: the parts of a training step that methods and strategies share. Imports Paddle."""

from erniecore.data.collate import collate
from erniecore.engine.arrays import share_memory
from erniecore.engine.metrics import add as add_metrics
from erniecore.engine.optimizers.roles import is_decayed
from erniecore.engine.optimizers.state import load_exactly
from erniecore.engine.seed import derive_seed
from erniecore.engine.step import forward_backward, step_totals
from erniecore.engine.training.next_token import NextTokenObjective

__all__ = [
    "NextTokenObjective",
    "add_metrics",
    "collate",
    "derive_seed",
    "forward_backward",
    "is_decayed",
    "load_exactly",
    "share_memory",
    "step_totals",
]
