"""Iluvatar GPUs through Paddle's custom-device plugin: the profile, as data. The vendor's library must be loaded first
(``LD_PRELOAD``), which only the user's shell can do before Python starts.
"""

from __future__ import annotations

from erniecore_accelerators import DECLARED, AcceleratorPlugin, Profile, Variable

PROFILE = Profile(
    name="iluvatar",
    title="Iluvatar GPU",
    place="iluvatar_gpu",
    packages=(("paddlepaddle", "PaddlePaddle for the host"), ("paddle-iluvatar-gpu", "its plugin for Iluvatar")),
    install="pip install paddlepaddle paddle-iluvatar-gpu -i https://www.paddlepaddle.org.cn/packages/stable/ixuca/",
    monitor="ixsmi",
    visible="CUDA_VISIBLE_DEVICES",
    collectives="Paddle's xccl",
    dtypes=frozenset({"float32", "bfloat16", "float16"}),
    variables={
        "FLAGS_embedding_deterministic": Variable(
            "1", "embedding gradients add up in a fixed order", deterministic=True
        ),
        "PADDLE_XCCL_BACKEND": Variable("iluvatar_gpu", "collectives run on the accelerator"),
    },
    lacks={
        "fp8": "train in bfloat16",
        "row-index-attention": "attention runs with a mask matrix",
        "fused-rms-norm": "norms run as separate operators",
    },
    evidence=DECLARED,
)


class IluvatarPlugin(AcceleratorPlugin):
    """Runs on Iluvatar GPUs."""

    name, summary, profile = "iluvatar", "Iluvatar GPUs", PROFILE


plugin = IluvatarPlugin()
