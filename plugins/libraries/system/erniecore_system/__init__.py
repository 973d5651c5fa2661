"""What the core asks of the operating system: memory, processes, streams, files, limits of time."""
