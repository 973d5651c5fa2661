"""Base of the plugins of adapters of linear layers that are no low-rank update of their own (``erniecore_vera``,
``erniecore_oft``): what they recognize, and what they say before the first step. Light.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from erniecore.api import CheckpointError, hookimpl
from erniecore.api.adapter import AdapterCapability, AdapterPlugin
from erniecore.api.files import read_object

if TYPE_CHECKING:
    from erniecore.api.method import RunView

CONFIG = "adapter_config.json"


class LinearAdapterPlugin(AdapterPlugin):
    """``peft_type``: of the directories that the adapter reads and writes."""

    capabilities = frozenset({AdapterCapability.MERGE, AdapterCapability.EMPTY})
    peft_type: ClassVar[str]

    @hookimpl
    def ernie_match_adapter(self, directory: Path) -> bool:
        """A directory of PEFT of this type."""
        file = directory / CONFIG
        return file.is_file() and read_object(file, CheckpointError, code="ERN-K021").get("peft_type") == self.peft_type

    @hookimpl
    def ernie_run_start(self, run: RunView) -> None:
        """Say before the first step that the routed experts which the targets name have no adapter."""
        from erniecore_lora.adapt import AdapterModel

        number = run.model.experts_left_out if isinstance(run.model, AdapterModel) else 0
        if number and run.is_main:
            message = (
                f"{self.name} has no form for stacks of matrices: {number} stacks of routed experts that adapter.targets names "
                "stay as they are; lora adapts them"
            )
            run.emit("warning", kind="adapter", message=message)
