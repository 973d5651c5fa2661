"""Online distillation for erniecore: students learn from the forward passes of a teacher that is itself trained."""
