"""The model `acme-lm`."""
