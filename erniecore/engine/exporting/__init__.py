"""Models for others: exporters' work, proof that what was written is the same model, and what servers ask of a directory."""
