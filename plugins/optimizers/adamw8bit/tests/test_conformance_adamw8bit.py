"""The plugin keeps the rules that every optimizer keeps, with every moment in 8 bits."""

from typing import ClassVar

from erniecore_adamw8bit.plugin import AdamW8bitPlugin
from erniecore_conformance import parametrize_checks


@parametrize_checks("optimizer", "adamw8bit")
def test_conformance(check):
    check()


class Everywhere(AdamW8bitPlugin):
    """The small parameters of the checks are quantized, too, in blocks that do not divide them."""

    conformance_config: ClassVar = {"min_size": 0, "embeddings": True, "block_size": 16}


everywhere = Everywhere()


@parametrize_checks("optimizer", "adamw8bit", target=f"{__name__}:everywhere")
def test_conformance_of_small_blocks(check):
    check()
