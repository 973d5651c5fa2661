"""What clients send, as pydantic models: strict types, ranges, and no field that nobody reads."""
