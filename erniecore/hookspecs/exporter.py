"""Hooks of exporters. See ``erniecore.hookspecs`` for the rules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.hookspecs.marker import hookspec

if TYPE_CHECKING:
    from erniecore.sections import Section
    from erniecore.types.model import ModelBundle
    from erniecore.types.records import Json


class ExporterHooks:
    """One provider: the exporter that ``--to`` names. Called outside a run."""

    @hookspec(firstresult=True)
    def ernie_export(self, config: Section, bundle: ModelBundle, target: Path) -> Path:
        """Write ``bundle`` into the existing, empty directory ``target``; returns it.

        Example::

            @hookimpl
            def ernie_export(self, bundle, target):
                write_everything(bundle, target)
                return target
        """

    @hookspec(firstresult=True)
    def ernie_contract_rules(self, architecture: Json) -> Sequence[Any]:
        """The rules (``erniecore_model_check.rules.Rule``) that a directory with this config.json keeps for those who load
        what this exporter writes; ``ernie model check --contract NAME`` checks them. No paddle. Optional: without it the
        exporter has no contract.

        Example::

            @hookimpl
            def ernie_contract_rules(self):
                from mypackage.contract import RULES
                return RULES
        """
