"""Commands that start a model from nothing: ``ernie model init`` and ``ernie tokenizer train``."""
