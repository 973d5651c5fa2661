"""The names and shapes of a model's weights, as text."""

from pathlib import Path

from erniecore.api import Plugin, hookimpl
from erniecore.api.export import ExporterCapability, ModelBundle


class Listing(Plugin):
    """One line per tensor."""

    kind, name, summary = "exporter", "listing", "names and shapes of the weights"
    capabilities = frozenset({ExporterCapability.LOSSY})

    @hookimpl
    def ernie_export(self, bundle: ModelBundle, target: Path) -> Path:
        lines = [f"{entry.name} {entry.shape}\n" for entry in bundle.adapter.maps("pt")]
        (target / "weights.txt").write_text("".join(lines))
        return target


plugin = Listing()
