"""What elastic training does beside its steps: sizes are checked against model and ranks, and the usage of experts is kept where
``ernie extract`` finds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore.api import ConfigError
from erniecore_elastic.config import ElasticSection
from erniecore_elastic.objective import ElasticObjective
from erniecore_elastic.pipeline import PipelineShape
from erniecore_elastic.usage import write_usage

if TYPE_CHECKING:
    from erniecore.api.method import RunView
    from erniecore.api.model import ElasticSizes


def start(run: RunView) -> None:
    """Tell the objective of the ranks. Raises ``ConfigError`` for sizes that the model or the ranks cannot have."""
    objective, degrees = run.objective, run.parallel_plan.degrees
    if not isinstance(objective, ElasticObjective):
        return
    check_sizes(objective.elastic, objective.sizes)
    stages = degrees.get("pipeline", 1)
    if stages > 1:
        split = run.parallel_plan.split
        objective.pipeline = PipelineShape(stages, len(split) // stages, tuple(split))
    if not objective.elastic.whole and (objective.elastic.depths or objective.elastic.retain < 1):
        for name, parameter in run.model.named_parameters():
            if run.ranks.shard_spec(name, parameter.shape).flat is not None:
                message = "must be at least 1 where ranks shard parameters: a layer that no micro-step runs has no gradient there"
                raise ConfigError.at("method.whole", message)


def check_sizes(config: ElasticSection, sizes: ElasticSizes) -> None:
    """Raises ``ConfigError`` by key."""
    for depth in config.depths:
        if not 2 <= depth < sizes.layers:
            raise ConfigError.at(
                "method.depths", f"the model has {sizes.layers} layers: choose 2 to {sizes.layers - 1}"
            )
    for key, values, most in (
        ("widths", config.widths, sizes.experts),
        ("selected", config.selected, sizes.num_selected),
    ):
        for value in values:
            if not most:
                raise ConfigError.at(f"method.{key}", "the model has no routed experts; leave it out")
            if not 1 <= value < most:
                raise ConfigError.at(f"method.{key}", f"the model has {most}: choose 1 to {most - 1} (got {value})")
    groups = config.expert_groups
    if any(size % groups for size in (sizes.experts, *config.widths)):
        message = f"each group keeps as many experts: {sizes.experts} experts and method.widths must be multiples of it"
        raise ConfigError.at("method.expert_groups", f"{message} (got {groups})")


def keep_usage(run: RunView) -> None:
    """``expert-usage.json``: assignments to each expert, rows as layers and MTP layers; main rank only."""
    objective = run.objective
    if isinstance(objective, ElasticObjective) and objective.usage is not None:
        write_usage(run.out, run.step, objective.usage.numpy().tolist())
