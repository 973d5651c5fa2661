"""Hooks of device plugins. See ``erniecore.hookspecs`` for the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore.hookspecs.marker import hookspec

if TYPE_CHECKING:
    from erniecore.sections import Section
    from erniecore.types.run import Cluster, Device


class DeviceHooks:
    """One provider: the device of the run. Called once per process."""

    @hookspec(firstresult=True)
    def ernie_open_device(self, config: Section, cluster: Cluster) -> Device:
        """The device, not yet opened: this is called before paddle is imported, to read ``environment()``.

        Example::

            @hookimpl
            def ernie_open_device(self, config, cluster):
                from mypackage.device import MyDevice
                return MyDevice(config, cluster)
        """
