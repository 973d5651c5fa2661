"""What a run will need, from shapes and from what this machine was measured to do: activations, peak memory, FLOPs, step time,
KV cache, layouts over many devices. No paddle, but in the modules that measure.
"""
