"""OFT adapters for erniecore."""
