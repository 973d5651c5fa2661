"""SwanLab logging for erniecore."""
