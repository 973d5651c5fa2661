"""Commands that generate with a model: ``ernie generate`` and ``ernie chat``; decoding itself is ``erniecore_generation``."""
