"""The ``model`` section of the settings for ERNIE 5.0. Says what to build; reads no file."""

from __future__ import annotations

from erniecore_ernie45_moe.config import MoeConfig


class Ernie5Config(MoeConfig):
    """Section of the model: that of the mixture-of-experts text models. One router serves text, images and audio."""
