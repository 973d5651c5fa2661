"""The device iluvatar for erniecore: Iluvatar GPUs."""
