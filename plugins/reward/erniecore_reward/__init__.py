"""Reward models for erniecore: a scalar head learned from pairs."""
