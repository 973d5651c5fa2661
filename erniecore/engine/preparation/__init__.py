"""What a run decides before paddle is imported: names, place, plan, memory, and where it continues."""
