"""MetaX GPUs through Paddle's custom-device plugin: the profile, as data."""

from __future__ import annotations

from erniecore_accelerators import DECLARED, AcceleratorPlugin, Profile, Variable

PROFILE = Profile(
    name="metax",
    title="MetaX GPU",
    place="metax_gpu",
    packages=(("paddlepaddle", "PaddlePaddle for the host"), ("paddle-metax-gpu", "its plugin for MetaX")),
    install="pip install paddlepaddle paddle-metax-gpu -i https://www.paddlepaddle.org.cn/packages/stable/maca/",
    monitor="mx-smi",
    visible="MACA_VISIBLE_DEVICES",
    collectives="Paddle's xccl",
    dtypes=frozenset({"float32", "bfloat16", "float16"}),
    variables={
        "MACA_DIRECT_DISPATCH": Variable("1", "as the vendor's training settings have it"),
        "MACA_SMALL_PAGESIZE_ENABLE": Variable("1", "less memory is lost to pages"),
        "MCCL_ENABLE_FC": Variable("0", "as the vendor's training settings have it"),
        "PADDLE_XCCL_BACKEND": Variable("metax_gpu", "collectives run on the accelerator"),
        "SET_DEVICE_NUMA_PREFERRED": Variable("1", "host memory near the accelerator is used first"),
    },
    lacks={"fp8": "train in bfloat16"},
    evidence=DECLARED,
)


class MetaxPlugin(AcceleratorPlugin):
    """Runs on MetaX GPUs."""

    name, summary, profile = "metax", "MetaX GPUs", PROFILE


plugin = MetaxPlugin()
