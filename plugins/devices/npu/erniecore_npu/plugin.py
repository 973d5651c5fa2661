"""Ascend NPUs through Paddle's custom-device plugin: the profile, as data. CANN's own variables come from its
``set_env.sh``, which the user's shell reads before anything else.
"""

from __future__ import annotations

from erniecore_accelerators import DECLARED, AcceleratorPlugin, Profile, Variable

PROFILE = Profile(
    name="npu",
    title="Ascend NPU",
    place="npu",
    packages=(("paddlepaddle", "PaddlePaddle for the host"), ("paddle-custom-npu", "its plugin for Ascend")),
    install="pip install paddlepaddle paddle-custom-npu -i https://www.paddlepaddle.org.cn/packages/stable/npu/ "
    "(in a shell that has read CANN's set_env.sh)",
    monitor="npu-smi info",
    visible="ASCEND_RT_VISIBLE_DEVICES",
    collectives="HCCL",
    dtypes=frozenset({"float32", "bfloat16", "float16"}),
    variables={
        "FLAGS_allocator_strategy": Variable("auto_growth", "memory is taken as it is needed"),
        "FLAGS_npu_jit_compile": Variable("0", "operators are compiled ahead: no pause at each new shape"),
    },
    lacks={
        "fp8": "train in bfloat16",
        "row-index-attention": "attention runs with a mask matrix",
        "fused-rms-norm": "norms run as separate operators",
        "fused-rope": "rotary embedding runs as separate operators",
    },
    evidence=DECLARED,
)


class NpuPlugin(AcceleratorPlugin):
    """Runs on Ascend NPUs."""

    name, summary, profile = "npu", "Ascend NPUs", PROFILE


plugin = NpuPlugin()
