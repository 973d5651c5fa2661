"""Which distributions provide ``paddle``, and whether they can work together and with the driver. From metadata and the
text of paddle's own version file; nothing is imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import metadata

from erniecore.api import install_command
from erniecore_doctor.findings import Finding, ok, problem, warning
from erniecore_doctor.tools import Accelerators

#: distributions that bring the package ``paddle`` itself; two of them overwrite each other's files
PROVIDERS = ("paddlepaddle", "paddlepaddle-gpu", "paddlepaddle-xpu", "paddlepaddle-dcu")
#: device plugins of Paddle, which go beside ``paddlepaddle`` and dictate its version
PLUGINS = ("paddle-custom-npu", "paddle-iluvatar-gpu", "paddle-metax-gpu")


def paddle_findings(installed: Mapping[str, str], supported: str) -> Iterator[Finding]:
    """Exactly one distribution, in the supported range.

    Args:
        installed: version by distribution, of those in ``PROVIDERS`` and ``PLUGINS``.
        supported: version range, e.g. ``>=3.3,<3.4``.
    """
    providers = {name: installed[name] for name in PROVIDERS if name in installed}
    beside = {name: installed[name] for name in PLUGINS if name in installed}
    if not providers:
        paddle = install_command("paddlepaddle", of="erniecore")
        fix = f"{paddle}, or the wheel that your device's vendor provides"
        yield problem("paddle", "distribution", "no distribution provides `paddle`", fix)
        return
    named = ", ".join(f"{name} {version}" for name, version in {**providers, **beside}.items())
    if len(providers) > 1:
        fix = f"pip uninstall -y {' '.join(providers)}, then install the one that you want"
        message = f"{len(providers)} distributions provide `paddle` and overwrite each other: {named}"
        yield problem("paddle", "distribution", message, fix)
        return
    yield ok("paddle", "distribution", named)
    ((name, version),) = providers.items()
    if accepts(supported, version):
        yield ok("paddle", "version", f"{version} is in the supported range {supported}")
    elif beside:
        message = f"{version} is outside of the tested range {supported}"
        yield warning(
            "paddle",
            "version",
            message,
            f"keep the version that {next(iter(beside))} requires; some features may not work",
        )
    else:
        message = f"{version} is outside of the supported range {supported}"
        yield problem("paddle", "version", message, install_command(f"{name}{supported}"))


def cuda_findings(wheel_cuda: str, accelerators: Accelerators | None) -> Iterator[Finding]:
    """Whether a wheel built for CUDA ``wheel_cuda`` (empty: built without) fits the driver that ``accelerators`` tell of.

    A driver runs everything built for its own CUDA version or an older one. Within a major version newer builds run
    too, but not code that is compiled at run time (NVIDIA, "CUDA compatibility": minor version compatibility).
    """
    if not wheel_cuda:
        return
    if accelerators is None:
        fix = "install NVIDIA's driver, or pass the GPUs to the container (--gpus all)"
        yield problem("paddle", "cuda", f"this paddle is built for CUDA {wheel_cuda}, and there is no driver", fix)
        return
    if not accelerators.runtime:
        yield warning("paddle", "cuda", f"built for CUDA {wheel_cuda}; the driver does not say which CUDA it runs")
        return
    wheel, driver = _numbers(wheel_cuda), _numbers(accelerators.runtime)
    text = f"built for CUDA {wheel_cuda}; driver {accelerators.driver} runs up to CUDA {accelerators.runtime}"
    if wheel[0] > driver[0]:
        fix = f"update the driver, or install a paddle that is built for CUDA {accelerators.runtime} or older"
        yield problem("paddle", "cuda", text, fix)
    elif wheel > driver:
        yield warning("paddle", "cuda", text, "works, but for kernels that are compiled at run time; update the driver")
    else:
        yield ok("paddle", "cuda", text)


def supported_range(extra: str = "cpu") -> str:
    """The range of ``paddlepaddle`` that erniecore's own metadata ask for."""
    for line in metadata.requires("erniecore") or ():
        match = re.match(r"paddlepaddle\s*([^;]*?)\s*;.*extra\s*==\s*['\"](\w+)['\"]", line)
        if match and match[2] == extra:
            return match[1].strip("() ")
    return ""


def built_for_cuda(provider: str) -> str:
    """CUDA version that the wheel was built for, read from the text of ``paddle/version``; empty without CUDA."""
    try:
        file = metadata.distribution(provider).locate_file("paddle/version/__init__.py")
        with open(str(file), encoding="utf-8") as stream:
            match = re.search(r"^cuda_version\s*=\s*['\"]([\d.]+)['\"]", stream.read(), re.MULTILINE)
    except (metadata.PackageNotFoundError, OSError):
        return ""
    return match[1] if match else ""


def accepts(supported: str, version: str) -> bool:
    """Whether a range takes a version; a range or version that cannot be read takes nothing, no range everything."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return SpecifierSet(supported).contains(version, prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return False


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
