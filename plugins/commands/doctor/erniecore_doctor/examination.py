"""All health checks, in the order in which they are printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from erniecore.api.installation import default_device, installed, load, loadable
from erniecore_doctor import devices, kernels, machine, plugins, wheels
from erniecore_doctor.findings import Finding
from erniecore_doctor.tools import Accelerators, tool_finding


def examine(environ: Mapping[str, str], out: Path, *, device: str = "", really_open: bool = False) -> Iterator[Finding]:
    """Findings about this machine; each comes as soon as it is known.

    Args:
        environ: of the process. out: where runs are to be written.
        device: the one that must work; the others may be missing. really_open: open it (default: ``cpu``) in a process
            of its own, which imports paddle.
    Raises:
        PluginError: ``device`` is not a plugin that can be loaded.
    """
    wanted = device or "cpu"
    load("device", wanted)
    yield machine.python_finding()
    yield machine.system_finding()
    yield machine.processor_finding(environ)
    yield machine.memory_finding()
    yield from machine.disk_findings(out)
    reports = devices.tools(devices.monitors())
    here = installed((*wheels.PROVIDERS, *wheels.PLUGINS))
    yield from wheels.paddle_findings(here, wheels.supported_range())
    nvidia = reports.get("cuda")
    cuda = wheels.built_for_cuda("paddlepaddle-gpu") if "paddlepaddle-gpu" in here else ""
    yield from wheels.cuda_findings(cuda, nvidia if isinstance(nvidia, Accelerators) else None)
    for plugin in loadable("device"):
        name, this = plugin.name, default_device(plugin.name)
        found = devices.preflight_finding(name, this, reports.get(name), wanted=name == device)
        yield found
        said = tool_finding(name, reports.get(name), devices.monitors().get(name, name))
        if said:
            yield said
        if name == wanted:
            yield from devices.environment_findings(name, this, environ)
            if really_open:
                yield devices.opened(name)
    yield from kernels.findings(wanted)
    yield from plugins.plugin_findings()
    yield from plugins.version_findings()
    yield from plugins.optional_findings()
