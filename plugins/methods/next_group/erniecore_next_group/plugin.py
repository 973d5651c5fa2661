"""The plugin objects of next-group prediction and of rows of parts. What they build is imported inside the hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from erniecore.api import ConfigError, Json, hookimpl
from erniecore.api.data import FormatPlugin
from erniecore.api.method import MethodPlugin
from erniecore.api.parallel import ParallelConfig
from erniecore_next_group import rows
from erniecore_next_group.config import NextGroupConfig

if TYPE_CHECKING:
    from erniecore.api.data import Origin, Record
    from erniecore.api.method import Encoder, Objective, Tokenizer


class NextGroupPlugin(MethodPlugin):
    """Learn to read and to make text, images and audio."""

    name = "next-group"
    summary = "ERNIE 5.0: the next token of text, the next scale of an image, the next frame of audio"
    Config = NextGroupConfig
    defaults: ClassVar[Mapping[str, tuple[Any, str]]] = {
        "train.learning_rate": (1e-4, "ERNIE 5.0, arXiv:2602.04705"),
        "train.warmup_ratio": (0.03, "that of `pt`"),
    }

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """Groups and levels are of whole rows, and of all layers."""
        parallel: ParallelConfig = settings.parallel
        for key in parallel.shards_positions():
            raise ConfigError.at(key, "groups of tokens need whole rows on every rank; set it to 1")

    @hookimpl
    def ernie_build_objective(self, config: NextGroupConfig, policy: Any) -> Objective:
        """The weighted sum of the modalities' means."""
        from erniecore_next_group.objective import NextGroupObjective

        return NextGroupObjective(config, policy)

    @hookimpl
    def ernie_build_encoder(self, tokenizer: Tokenizer, max_length: int) -> Encoder:
        """Encodes rows of parts and documents."""
        from erniecore_next_group.encoder import NextGroupEncoder

        return NextGroupEncoder(tokenizer, max_length)


class PartsFormat(FormatPlugin):
    """Texts, images and sounds that are given, and those that are to be made."""

    name = "parts"
    summary = "Parts (text, image, audio) that are given, and parts that are to be made of them"
    examples: ClassVar[tuple[Json, ...]] = (
        {"given": [{"text": "a red circle"}], "made": [{"image": "circle.png"}]},
        {"given": [{"image": "circle.png"}], "made": [{"text": "a red circle"}]},
        {"given": [{"audio": "begin.wav"}], "made": [{"audio": "rest.wav"}]},
    )

    @hookimpl
    def ernie_match_row(self, row: Json) -> bool:
        """By a list of parts that are made."""
        return rows.matches(row)

    @hookimpl
    def ernie_parse_row(self, row: Json, origin: Origin) -> Record:
        """The record of a row, with its parts."""
        return rows.parse(row, origin)


plugin, parts = NextGroupPlugin(), PartsFormat()
