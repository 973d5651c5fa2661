"""The device cuda for erniecore: NVIDIA GPUs."""
