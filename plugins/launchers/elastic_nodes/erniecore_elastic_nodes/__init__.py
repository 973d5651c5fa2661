"""The launcher ``elastic-nodes``: one run on machines that come and go."""
