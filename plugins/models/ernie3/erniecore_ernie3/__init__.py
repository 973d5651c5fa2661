"""ERNIE 3.0 for erniecore: universal module, task modules, recurrence memory."""
