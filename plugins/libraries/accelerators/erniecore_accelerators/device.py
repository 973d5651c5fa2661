"""The ``Device`` of an accelerator, driven by its profile, and the base class of its plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any, ClassVar

from erniecore.api import Cluster, DeviceUnavailable, Field, hookimpl
from erniecore.api.device import Device, DeviceConfig, DevicePlugin, importing_paddle, size_text
from erniecore_accelerators.profile import Profile

#: place -> the module of ``paddle.device`` that counts its cards, for devices that paddle is built for
COUNTERS = {"gpu": "cuda", "xpu": "xpu"}
#: whether a distribution is installed
Installed = Callable[[str], bool]


def is_installed(distribution: str) -> bool:
    """From metadata alone."""
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


class AcceleratorConfig(DeviceConfig):
    """An accelerator."""

    repeatable: bool = Field(
        True,
        description="Choose kernels whose results repeat bit for bit. `false` is faster, and needs run.deterministic=false.",
    )
    card: int = Field(-1, ge=-1, description="Which of the visible cards; -1: the rank's place on its machine.")


class Accelerator(Device):
    """See ``erniecore.types.run.Device``.

    Args:
        profile: the kind. config: the device's section. cluster: this process's place.
        installed: asked for distributions; tests give their own.
    """

    def __init__(
        self, profile: Profile, config: AcceleratorConfig, cluster: Cluster, installed: Installed = is_installed
    ) -> None:
        self.profile, self.name, self.dtypes = profile, profile.name, profile.dtypes
        self._repeatable = config.repeatable
        self.deterministic = config.repeatable and profile.repeats is not False
        self.lacks = profile.lacks
        self.card = cluster.local_rank if config.card < 0 else config.card
        self._installed, self._num_processes = installed, cluster.world_size

    def environment(self) -> Mapping[str, str]:
        """The profile's variables; those for repeatable results only where these are wanted. Several processes also need
        what ``paddle.distributed`` asks for: the card of this one and, on a plug-in device, the name of its backend."""
        chosen = {n: v for n, v in self.profile.variables.items() if self._repeatable or not v.deterministic}
        values = {name: variable.value for name, variable in chosen.items()}
        if self._num_processes > 1:
            values[f"FLAGS_selected_{self.profile.place}s"] = str(self.card)
            if not self.profile.compiled:
                values["PADDLE_DISTRI_BACKEND"] = "xccl"
        return dict(sorted(values.items()))

    def warnings(self) -> list[str]:
        """What the user should know before trusting results."""
        if self.profile.repeats is None and self._repeatable:
            return [f"device {self.name}: whether results repeat bit for bit has not been shown"]
        return []

    def preflight(self) -> None:
        """Raise ``DeviceUnavailable`` unless exactly the packages of the profile are there. Imports nothing."""
        missing = [f"{name} ({what})" for name, what in self.profile.packages if not self._installed(name)]
        if missing:
            raise self._unavailable(
                "its packages are not installed", "", self.profile.install, expected=", ".join(missing)
            )
        rivals = [name for name in self.profile.excludes if self._installed(name)]
        if rivals:
            ours = ", ".join(name for name, _ in self.profile.packages)
            fix = f"pip uninstall -y {' '.join(rivals)}, then {self.profile.install}"
            raise self._unavailable(
                "two distributions provide the same package `paddle`", f"{ours} and {rivals[0]}", fix
            )

    def open(self) -> None:
        """Import paddle and select the card.

        Raises:
            DeviceUnavailable: packages, driver or card are missing; fix: the vendor's command or tool.
        """
        self.preflight()
        with importing_paddle():
            import paddle
        if not self._is_supported(paddle):
            raise self._unavailable("this paddle was not built for it", paddle.__version__, self.profile.install)
        count = self._count(paddle)
        if self.card >= count:
            found = f"{count} visible cards, and card {self.card} is wanted"
            fix = f"look at `{self.profile.monitor}` and at {self.profile.visible}"
            raise self._unavailable("there is no such card", found, fix)
        paddle.set_device(f"{self.profile.place}:{self.card}")

    def _is_supported(self, paddle: Any) -> bool:
        if self.profile.compiled:
            return bool(getattr(paddle, self.profile.compiled)())
        return self.profile.place in paddle.device.get_all_custom_device_type()

    def _count(self, paddle: Any) -> int:
        if self.profile.compiled:
            return int(getattr(paddle.device, COUNTERS[self.profile.place]).device_count())
        devices = paddle.device.get_available_custom_device()
        return sum(device.partition(":")[0] == self.profile.place for device in devices)

    def _unavailable(self, message: str, found: str, fix: str, expected: str = "") -> DeviceUnavailable:
        what = f"device {self.name} ({self.profile.title}): {message}"
        return DeviceUnavailable(what, found=found, expected=expected, fix=fix)

    def describe(self) -> Mapping[str, str]:
        """Name and memory of the card as paddle sees it, and the communication library. Of most plug-in devices paddle
        knows neither: they are called by their kind."""
        import paddle

        facts = {"card": f"{self.profile.place}:{self.card}", "collectives": self.profile.collectives}
        try:
            properties = paddle.device.get_device_properties(facts["card"])
        except RuntimeError:  # "not supported for this device type"
            return {**facts, "name": self.profile.title}
        return {**facts, "name": str(properties.name), "memory": size_text(properties.total_memory)}

    def peak_memory(self) -> int:
        """Most memory that tensors held on the card, bytes."""
        import paddle

        return int(paddle.device.max_memory_allocated(f"{self.profile.place}:{self.card}"))


class AcceleratorPlugin(DevicePlugin):
    """A device plugin that is a profile.

    Attributes:
        profile: everything that differs from other accelerators.
    """

    Config = AcceleratorConfig
    profile: ClassVar[Profile]

    @hookimpl
    def ernie_open_device(self, config: AcceleratorConfig, cluster: Cluster) -> Device:
        """The card of this rank, not yet opened."""
        return Accelerator(self.profile, config, cluster)
