"""``ernie launch``: the settings of a run become a job of a cluster's scheduler."""
