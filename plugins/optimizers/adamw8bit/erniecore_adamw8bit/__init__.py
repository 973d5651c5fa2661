"""AdamW with moments of 8 bits for erniecore."""
