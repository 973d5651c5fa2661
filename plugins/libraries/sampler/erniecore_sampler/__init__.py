"""Which samples form which step of which rank: orders, mixes and packs."""
