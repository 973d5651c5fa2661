"""Model directories: reading, writing, building, quantising, adapting, and a model with everything around it."""
