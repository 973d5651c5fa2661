"""Hubs for erniecore: models and data sets by their names, such as ``hf:baidu/ERNIE-4.5-0.3B-PT``."""
