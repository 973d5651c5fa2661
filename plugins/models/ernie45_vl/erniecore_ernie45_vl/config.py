"""The ``model`` section of the settings for the vision-language models. Says what to build; reads no file."""

from __future__ import annotations

from erniecore_ernie45_moe.config import RouterSection


class VlConfig(RouterSection):
    """Section of the vision-language models: how to train what config.json describes. Runs train the text part; the vision
    part (tower, resampler, vision routers and experts) is loaded, frozen and written again."""
