"""Distillation for erniecore: a student learns a teacher's distributions."""
