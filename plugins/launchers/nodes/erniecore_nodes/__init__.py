"""The launcher ``nodes``: one run on several machines, with the same command and an agent on each."""
