"""Low-rank adapters for erniecore."""
