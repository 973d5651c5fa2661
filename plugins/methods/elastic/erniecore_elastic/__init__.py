"""Elastic training for erniecore: a model and the smaller ones inside it; and ``ernie extract``."""
