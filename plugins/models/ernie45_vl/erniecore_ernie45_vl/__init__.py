"""ERNIE 4.5 vision-language models for erniecore."""
