"""The plugin objects of ERNIE 3.0's pre-training and of rows with knowledge. What they build is imported inside the hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from erniecore.api import ConfigError, Json, hookimpl
from erniecore.api.data import FormatPlugin
from erniecore.api.method import MethodPlugin
from erniecore.api.parallel import ParallelConfig
from erniecore_ernie3_pretrain import rows
from erniecore_ernie3_pretrain.config import Ernie3PretrainConfig

if TYPE_CHECKING:
    from erniecore.api.data import Origin, Record
    from erniecore.api.method import Encoder, Objective, RunView, Tokenizer


class Ernie3PretrainPlugin(MethodPlugin):
    """Learn words, documents, the order of sentences and knowledge at once."""

    name = "ernie3-pretrain"
    summary = "ERNIE 3.0: masked knowledge, documents with memory, sentence order and distance, triples"
    Config = Ernie3PretrainConfig
    defaults: ClassVar[Mapping[str, tuple[Any, str]]] = {
        "train.learning_rate": (1e-4, "ERNIE 3.0, arXiv:2107.02137, section 4.1"),
        "train.weight_decay": (0.01, "ERNIE 3.0, arXiv:2107.02137, section 4.1"),
        "train.warmup_ratio": (0.03, "that of `pt`"),
        "train.accumulation": (8, "that of `pt`"),
    }
    #: the toy model of the conformance kit has neither a module for understanding nor a memory
    conformance_config: ClassVar[Mapping[str, Any]] = {
        "kmlm": 0.0,
        "reorder": 0.0,
        "distance": 0.0,
        "uktp": 0.0,
        "segment_length": 0,
    }

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """Segments and both masks are of whole rows, and passes over examples that the method makes of them."""
        if settings.data.static_shapes:
            raise ConfigError.at(
                "data.static_shapes", "the examples of ernie3-pretrain have their own lengths; set it to false"
            )
        parallel: ParallelConfig = settings.parallel
        for key in parallel.shards_positions():
            raise ConfigError.at(key, "the objectives of ernie3-pretrain read whole rows; set it to 1")

    @hookimpl
    def ernie_build_objective(self, config: Ernie3PretrainConfig, policy: Any, tokenizer: Tokenizer) -> Objective:
        """The sum of the objectives' means."""
        from erniecore_ernie3_pretrain.objective import Ernie3Objective

        return Ernie3Objective(config, policy, tokenizer)

    @hookimpl
    def ernie_build_encoder(self, config: Ernie3PretrainConfig, tokenizer: Tokenizer, max_length: int) -> Encoder:
        """Encodes documents and passages."""
        from erniecore_ernie3_pretrain.encoder import Ernie3Encoder

        return Ernie3Encoder(tokenizer, max_length, config.weights())

    @hookimpl
    def ernie_run_start(self, run: RunView) -> None:
        """Growth ends where the warm-up of the rate does, unless the settings say otherwise."""
        from erniecore_progressive.schedule import growing_steps

        from erniecore_ernie3_pretrain.objective import Ernie3Objective

        objective, settings = run.objective, run.settings
        assert isinstance(objective, Ernie3Objective)
        objective.growth.steps = growing_steps(settings.method.steps, settings.train, run.total_steps)


class KnowledgeFormat(FormatPlugin):
    """Passages with their phrases and entities, or with the triple that they say."""

    name = "knowledge"
    summary = "Passages with spans (phrases, entities), or with the triple (head, relation, tail) that they say"
    examples: ClassVar[tuple[Json, ...]] = (
        {"passage": "Ada Lovelace wrote the first program.", "spans": ["Ada Lovelace", [23, 36]]},
        {
            "passage": "Ada Lovelace wrote the first program.",
            "triple": {"head": "Ada Lovelace", "relation": "author of", "tail": "first program"},
        },
        {"passage": "Once there was a mill by the river."},
    )

    @hookimpl
    def ernie_match_row(self, row: Json) -> bool:
        """By the field ``passage``."""
        return rows.matches(row)

    @hookimpl
    def ernie_parse_row(self, row: Json, origin: Origin) -> Record:
        """One passage per row."""
        return rows.parse(row, origin)


plugin, knowledge = Ernie3PretrainPlugin(), KnowledgeFormat()
