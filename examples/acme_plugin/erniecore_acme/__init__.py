"""Acme's plugins for erniecore: the model `acme-lm`, the method `acme-dpo`, the device `acme-npu`."""
