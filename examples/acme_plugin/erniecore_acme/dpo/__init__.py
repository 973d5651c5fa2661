"""The method `acme-dpo`."""
