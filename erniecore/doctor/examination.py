"""The whole examination in the order in which it is printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from erniecore import registry
from erniecore.doctor import devices, machine, plugins, wheels
from erniecore.doctor.findings import Finding
from erniecore.doctor.tools import Cards, tool_finding
from erniecore.known import installed


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
    registry.load("device", wanted)
    yield machine.python_finding()
    yield machine.system_finding()
    yield machine.processor_finding(environ)
    yield machine.memory_finding()
    yield from machine.disk_findings(out)
    answers = devices.tools(devices.monitors())
    here = installed((*wheels.PROVIDERS, *wheels.PLUGINS))
    yield from wheels.paddle_findings(here, wheels.supported_range())
    nvidia = answers.get("cuda")
    cuda = wheels.built_for_cuda("paddlepaddle-gpu") if "paddlepaddle-gpu" in here else ""
    yield from wheels.cuda_findings(cuda, nvidia if isinstance(nvidia, Cards) else None)
    for plugin in registry.loadable("device"):
        name, this = plugin.name, devices.device_of(plugin)
        found = devices.preflight_finding(name, this, answers.get(name), wanted=name == device)
        yield found
        said = tool_finding(name, answers.get(name), devices.monitors().get(name, name))
        if said:
            yield said
        if name == wanted:
            yield from devices.environment_findings(name, this, environ)
            if really_open:
                yield devices.opened(name)
    yield from plugins.plugin_findings()
    yield from plugins.version_findings()
    yield from plugins.optional_findings()
