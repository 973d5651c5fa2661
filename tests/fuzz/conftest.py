"""A tiny model directory for the readers of tokenizers."""

from talker import talker as talker  # the fixture
