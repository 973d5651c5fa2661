"""DPO with a margin: the method plugin `acme-dpo`."""
