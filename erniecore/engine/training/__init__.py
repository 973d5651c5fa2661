"""The run proper: assembly, loop, step, optimizer, checkpoints, recovery."""
