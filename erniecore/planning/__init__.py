"""What a run will need, from shapes alone: activations, products, caches, time, layouts. Pure functions; no paddle, no
files but the one that holds measured rates.
"""
