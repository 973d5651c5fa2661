"""Supervised fine-tuning for erniecore."""
