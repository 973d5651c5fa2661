"""Settings of other toolkits, read as ours. Each toolkit has a package of its own; nothing here trains or needs paddle."""
