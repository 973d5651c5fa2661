"""The ``model`` section of the settings for the vision-language models. Says what to build; reads no file."""

from __future__ import annotations

from erniecore_ernie45_moe.config import RouterSection

from erniecore.api import Field


class VlConfig(RouterSection):
    """Section of the vision-language models: how to train what config.json describes. Runs train the text part; the vision
    part (tower, resampler, vision routers and experts) is loaded, frozen and written again."""

    template: str = Field(
        "",
        description="Chat template: `ernie45-vl`, `ernie45-vl-thinking`, those of the text models, or the path of a .jinja file. "
        "Empty: the tokenizer directory's own (chat_template.jinja or a key of tokenizer_config.json), else `ernie45-vl`.",
    )
