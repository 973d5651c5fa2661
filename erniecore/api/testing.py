"""For conformance checks of plugins: the registry, hook specifications, a process group of one process, and the parts of a run
that checks compare with. What needs Paddle imports it when it is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from erniecore.config.core import CORE_SECTIONS
from erniecore.engine.launch import apply_environment, paddle_variables, read_cluster
from erniecore.engine.process_group import SingleProcess, combine, sum_named
from erniecore.hookspecs import all_hooks, all_specifications
from erniecore.kernels import OPERATORS
from erniecore.kinds import KINDS
from erniecore.plugin_files import opened as open_plugin_file
from erniecore.registry import entries, find, load, load_object
from erniecore.types.records import NOWHERE

if TYPE_CHECKING:
    from erniecore.types.model import Layer as Layer
    from erniecore.types.model import Tensor as Tensor
    from erniecore.types.optimizer import Optimizer
    from erniecore.types.process_group import ProcessGroup
    from erniecore.types.samples import Array

__all__ = [
    "CORE_SECTIONS",
    "KINDS",
    "NOWHERE",
    "OPERATORS",
    "SingleProcess",
    "all_hooks",
    "all_specifications",
    "apply_environment",
    "combine",
    "entries",
    "find",
    "full_parameters",
    "gradient_square_sum",
    "load",
    "load_object",
    "new_optimizer",
    "open_plugin_file",
    "paddle_variables",
    "read_cluster",
    "sum_named",
    "using_kernels",
]


def new_optimizer(model: Layer, ranks: ProcessGroup) -> Optimizer:
    """The run's AdamW with default settings over this rank's share of ``model``'s parameters."""
    from erniecore.config.adamw import AdamWConfig
    from erniecore.config.core import TrainSection
    from erniecore.engine.optimizers.adamw import AdamW
    from erniecore.engine.optimizers.parameters import trained_parameters

    return AdamW(trained_parameters(model.named_parameters(), TrainSection(), ranks=ranks), AdamWConfig())


def gradient_square_sum(optimizer: Optimizer, ranks: ProcessGroup) -> float:
    """Σ g² over the gradients that this rank counts in the global norm."""
    from erniecore.engine.optimizers.parameters import gradient_square_sum as square_sum

    return float(square_sum(optimizer, ranks.counts_parameter))


def full_parameters(model: Layer, ranks: ProcessGroup) -> list[Array]:
    """Every parameter as a full array, in the model's order, on every rank; all ranks call it together."""
    shards = [(parameter, ranks.shard_spec(name, parameter.shape)) for name, parameter in model.named_parameters()]
    return [tensor.numpy() if spec.is_full else ranks.gather_to_host(tensor, spec) for tensor, spec in shards]


@contextmanager
def using_kernels(device: str, *, reference: bool = False) -> Iterator[tuple[str, ...]]:
    """Within the block, operators run on the kernel sets that are installed for ``device``.

    Args:
        reference: run the formulas in paddle instead.

    Yields:
        The names of the kernel sets in use; none when nothing is installed.
    """
    from erniecore_ops.parallel import num_workers

    from erniecore import kernels

    choice = kernels.REFERENCES if reference else kernels.choose(device, {})
    kernels.use(choice, num_workers)
    try:
        yield tuple(choice.sets)
    finally:
        kernels.use(kernels.REFERENCES, num_workers)
