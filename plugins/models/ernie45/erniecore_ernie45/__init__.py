"""ERNIE 4.5 dense text models for erniecore."""
