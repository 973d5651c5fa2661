"""For tools that manage the token cache of runs: where it is, and the locks of its entries."""

from erniecore.data.cache_locks import try_locked
from erniecore.data.splits import user_cache

__all__ = ["try_locked", "user_cache"]
