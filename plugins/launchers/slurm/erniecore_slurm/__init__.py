"""The ranks of a run as tasks of a Slurm job."""
