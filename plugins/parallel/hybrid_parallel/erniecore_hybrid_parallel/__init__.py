"""One training run on several processes, through ``paddle.distributed``."""
