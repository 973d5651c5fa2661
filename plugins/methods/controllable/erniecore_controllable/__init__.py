"""Controllable language modeling for erniecore: text under genre, topic, keywords, sentiment and length."""
