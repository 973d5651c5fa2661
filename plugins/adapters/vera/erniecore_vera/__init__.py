"""VeRA adapters for erniecore."""
