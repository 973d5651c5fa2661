"""Optimizers: which parameters they get (``parameters.py``), state of one parameter (``slots.py``), the state of all as arrays
(``state.py``), and AdamW."""
