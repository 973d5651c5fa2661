"""Self-supervised adversarial loss for erniecore: text of people against generated text, and re-ranking by it."""
