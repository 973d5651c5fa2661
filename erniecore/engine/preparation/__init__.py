"""What a run decides before paddle is imported: names, place, plan, memory, layout, and where it continues."""
