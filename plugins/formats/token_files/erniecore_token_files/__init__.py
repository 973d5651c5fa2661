"""Indexed token files for erniecore: a corpus to train on, and ``ernie data build``, which makes one."""
