"""Tiny stand-ins that need no plugin and no files: tokenizer, records, batches, a model, and one good plugin per
kind. Checks use them as the other half of what they test; mutants are the good plugins with one thing wrong."""
