"""Fixtures of the command line."""

from talker import talker as talker  # the fixture
