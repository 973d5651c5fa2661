"""Progressive learning for erniecore: length, batch, dropout and rate grow together while pre-training warms up."""
