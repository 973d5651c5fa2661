"""MLflow logging for erniecore."""
