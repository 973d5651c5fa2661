"""VisualDL logging for erniecore."""
