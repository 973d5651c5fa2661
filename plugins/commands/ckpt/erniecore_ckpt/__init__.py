"""Commands on checkpoints: they are listed, verified, replayed, written again in other files, and pruned."""
