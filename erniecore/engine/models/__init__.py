"""Model directories: reading, writing, building, quantizing, adapting, and a model with everything around it."""
