"""Distillation from a teacher at another site: of its distributions the likeliest tokens travel, over the transport of `wan`."""
