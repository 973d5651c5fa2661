"""Run directories read back: ``ernie runs list``, and the record of a run (``record.py``) for other plugins."""
