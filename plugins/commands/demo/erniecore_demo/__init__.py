"""The embedded example: a tiny mixture of experts learns small tasks, is killed, resumes exactly, and is exported."""
