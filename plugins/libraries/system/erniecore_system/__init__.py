"""What the core asks of the operating system: memory, processes, streams, files by content, limits of time."""
