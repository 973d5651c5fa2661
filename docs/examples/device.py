"""The processor of the host, with one thread."""

from collections.abc import Mapping

from erniecore.api import hookimpl
from erniecore.api.device import Device, DevicePlugin


class OneThread(Device):
    """Everything that has no default in ``Device``."""

    name, dtypes, deterministic, is_host = "one-thread", frozenset({"float32"}), True, True

    def environment(self) -> Mapping[str, str]:
        return {"OMP_NUM_THREADS": "1"}

    def open(self) -> None:
        import paddle

        paddle.set_device("cpu")

    def describe(self) -> Mapping[str, str]:
        return {"processor": "the host's"}

    def peak_memory(self) -> int:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class OneThreadPlugin(DevicePlugin):
    """Opens the device with one thread."""

    name, summary = "one-thread", "the processor, with one thread"

    @hookimpl
    def ernie_open_device(self) -> Device:
        return OneThread()


plugin = OneThreadPlugin()
