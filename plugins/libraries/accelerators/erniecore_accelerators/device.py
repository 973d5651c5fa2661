"""The ``Device`` of an accelerator, driven by its profile, and the base class of its plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any, ClassVar

from erniecore.api import DeviceUnavailable, Field, hookimpl
from erniecore.api.device import Cluster, Device, DeviceConfig, DevicePlugin, guarding_import, size_text
from erniecore_accelerators.profile import Profile

#: place -> the module of ``paddle.device`` that counts its accelerators, for devices that paddle is built for
COUNTERS = {"gpu": "cuda", "xpu": "xpu"}
#: whether a distribution is installed
Installed = Callable[[str], bool]


def is_installed(distribution: str) -> bool:
    """Whether the metadata of a distribution is found."""
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


class AcceleratorConfig(DeviceConfig):
    """Settings that all accelerators share."""

    repeatable: bool = Field(
        True,
        description="Use deterministic kernels, with results that are equal bit for bit. `false` is faster and needs "
        "run.deterministic=false.",
    )
    index: int = Field(-1, ge=-1, description="Index of the visible device; -1: the local rank.")


class Accelerator(Device):
    """A device that is described by a profile.

    Args:
        profile: the kind. config: the device's section. cluster: this process's place.
        installed: whether a distribution is installed; tests pass their own function.
    """

    def __init__(
        self, profile: Profile, config: AcceleratorConfig, cluster: Cluster, installed: Installed = is_installed
    ) -> None:
        self.profile, self.name, self.dtypes = profile, profile.name, profile.dtypes
        self._repeatable = config.repeatable
        self.deterministic = config.repeatable and profile.repeats is not False
        self.lacks = profile.lacks
        self.index = cluster.local_rank if config.index < 0 else config.index
        self._installed, self._num_processes = installed, cluster.world_size

    def environment(self) -> Mapping[str, str]:
        """The variables of the profile, those for deterministic kernels only with ``repeatable``. With several processes also the
        variables of ``paddle.distributed``: the selected device and, for a custom device, the name of its backend."""
        chosen = {n: v for n, v in self.profile.variables.items() if self._repeatable or not v.deterministic}
        values = {name: variable.value for name, variable in chosen.items()}
        if self._num_processes > 1:
            values[f"FLAGS_selected_{self.profile.place}s"] = str(self.index)
            if not self.profile.compiled:
                values["PADDLE_DISTRI_BACKEND"] = "xccl"
        return dict(sorted(values.items()))

    def warnings(self) -> list[str]:
        """What the user should know before trusting results."""
        if self.profile.repeats is None and self._repeatable:
            return [f"device {self.name}: whether results repeat bit for bit has not been shown"]
        return []

    def preflight(self) -> None:
        """Raise ``DeviceUnavailable`` unless the packages of the profile, and no conflicting ones, are there. Imports nothing."""
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
        """Import paddle and select the accelerator.

        Raises:
            DeviceUnavailable: packages, driver or accelerator are missing; fix: the vendor's command or tool.
        """
        self.preflight()
        with guarding_import():
            import paddle

        if not self._is_supported(paddle):
            raise self._unavailable("this paddle was not built for it", paddle.__version__, self.profile.install)
        count = self._count(paddle)
        if self.index >= count:
            found = f"{count} visible devices, device.index={self.index}"
            fix = f"look at `{self.profile.monitor}` and at {self.profile.visible}"
            raise self._unavailable("there is no such device", found, fix)
        paddle.set_device(f"{self.profile.place}:{self.index}")

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
        """Name and memory as Paddle reports them, and the communication library. Paddle reports neither for most custom
        devices; they get the title of the profile."""
        import paddle

        facts = {"device": f"{self.profile.place}:{self.index}", "collectives": self.profile.collectives}
        try:
            properties = paddle.device.get_device_properties(facts["device"])
        except RuntimeError:  # "not supported for this device type"
            return {**facts, "name": self.profile.title}
        return {**facts, "name": str(properties.name), "memory": size_text(properties.total_memory)}

    def peak_memory(self) -> int:
        """Peak memory allocated by tensors on the device, in bytes."""
        import paddle

        return int(paddle.device.max_memory_allocated(f"{self.profile.place}:{self.index}"))


class AcceleratorPlugin(DevicePlugin):
    """A device plugin that is a profile.

    Attributes:
        profile: everything that differs from other accelerators.
    """

    Config = AcceleratorConfig
    profile: ClassVar[Profile]

    @hookimpl
    def ernie_open_device(self, config: AcceleratorConfig, cluster: Cluster) -> Device:
        """The accelerator of this rank, not yet opened."""
        return Accelerator(self.profile, config, cluster)
