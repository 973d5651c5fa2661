"""Run directories read back: ``ernie runs list`` and ``stop``, and the record of a run (``record.py``) for other plugins."""
