"""Opening what a run computes on: the device, with which paddle is imported, and the process group."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from erniecore import kernels
from erniecore.engine import launch
from erniecore.engine.views import check_views
from erniecore.types.process_group import ProcessGroup
from erniecore.types.run import Cluster, Device, ParallelPlan

if TYPE_CHECKING:
    from erniecore.engine.context import Resumption
    from erniecore.host import Host
    from erniecore.sections import ParallelConfig


def open_device(device: Device, cluster: Cluster, choice: kernels.Choice) -> list[str]:
    """Set the device's environment and import paddle; returns warnings."""
    variables = launch.paddle_variables(cluster)
    kept = variables.keys() & os.environ.keys()  # a launcher's own names for its ranks
    wanted = {**variables, **device.environment()}
    warnings = launch.apply_environment({k: v for k, v in wanted.items() if k not in kept})
    device.open()
    check_views(device.name)
    launch.use_kernels(choice, warnings)
    return warnings


def open_process_group(
    host: Host, parallel: ParallelConfig, plan: ParallelPlan, cluster: Cluster, device: Device
) -> ProcessGroup:
    """Meet the other processes. Raises ``EnvironmentFault`` if they do not come."""
    ranks: ProcessGroup = host.hook.ernie_open_process_group(config=parallel, plan=plan, cluster=cluster, device=device)
    return ranks


def share_choice(ranks: ProcessGroup, resumption: Resumption) -> Resumption:
    """Where rank 0 continues, on every rank."""
    found = resumption.checkpoint
    path = ranks.all_gather_object("" if found is None else str(found.path.resolve()))[0]
    if path and found is None:
        from erniecore_checkpoint.reader import load_checkpoint

        return replace(resumption, checkpoint=load_checkpoint(Path(path), verify=False))  # rank 0 has read every byte
    return resumption
