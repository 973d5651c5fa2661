"""A small decoder: the model plugin `acme-lm`."""
