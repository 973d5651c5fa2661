"""Building block: what layers of any model have in common. Imports paddle."""

from erniecore.quiet import importing_paddle

with importing_paddle():
    from erniecore.engine.models.derived import child, derived, replaced, sublayer
    from erniecore.engine.models.lowering import computes_as, projection_of, without_hooks
    from erniecore.engine.models.score_head import add_score_head
    from erniecore.engine.training.recompute import recompute

__all__ = [
    "add_score_head",
    "child",
    "computes_as",
    "derived",
    "projection_of",
    "recompute",
    "replaced",
    "sublayer",
    "without_hooks",
]
