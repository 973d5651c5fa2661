"""Building block: the operators of the models, one by one; see ``erniecore_ops``. Imports Paddle."""

from erniecore_ops import functions
from erniecore_ops.adamw import Terms as AdamWTerms
from erniecore_ops.adamw import adamw_, square_sum
from erniecore_ops.functions import *  # noqa: F403

__all__ = ["AdamWTerms", "adamw_", "square_sum"]
__all__ += functions.__all__
