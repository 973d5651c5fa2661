"""The device `acme-npu`: an accelerator that Paddle loads as a plugin, described as data. It does not exist, so opening
it ends with exit code 3 and the command that would install it; never with another device.
"""

from __future__ import annotations

from erniecore_accelerators import DECLARED, AcceleratorPlugin, Profile, Variable

PROFILE = Profile(
    name="acme-npu",
    title="Acme accelerator",
    place="acme",
    packages=(("paddlepaddle", "PaddlePaddle for the host"), ("paddle-acme", "its plugin for the accelerator")),
    install="pip install paddlepaddle paddle-acme -i https://wheels.acme.example/simple/",
    monitor="acme-smi",
    visible="ACME_VISIBLE_DEVICES",
    collectives="ACCL",
    dtypes=frozenset({"float32", "bfloat16"}),
    variables={"FLAGS_allocator_strategy": Variable("auto_growth", "memory is taken as it is needed")},
    lacks={"fp8": "train in bfloat16"},
    evidence=DECLARED,
)


class AcmeNpuPlugin(AcceleratorPlugin):
    """Opens Acme accelerators, of which there are none."""

    name, summary, profile = "acme-npu", "Acme accelerators (an example: there is no such device)", PROFILE


plugin = AcmeNpuPlugin()
