"""The device metax for erniecore: MetaX GPUs."""
