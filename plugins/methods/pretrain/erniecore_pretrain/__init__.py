"""Pre-training for erniecore: documents, jsonl and indexed token files."""
