"""The launcher ``local``: the ranks of a run as processes of this machine, on several machines with one agent on each."""
