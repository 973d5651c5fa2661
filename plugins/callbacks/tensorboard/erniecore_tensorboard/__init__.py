"""TensorBoard logging for erniecore."""
