"""GGUF files for llama.cpp: exporter ``gguf``."""
