"""Kunlunxin XPUs through Paddle's XPU build: the profile, as data.

No network interface is named here: which ones BKCL may use differs by host and stays the user's to set
(``BKCL_SOCKET_IFNAME``, ``BKCL_RDMA_NICS``).
"""

from __future__ import annotations

from erniecore_accelerators import DECLARED, AcceleratorPlugin, Profile, Variable

PROFILE = Profile(
    name="xpu",
    title="Kunlunxin XPU",
    place="xpu",
    packages=(("paddlepaddle-xpu", "PaddlePaddle built for Kunlunxin"),),
    install="pip install paddlepaddle-xpu==3.3.0 -i https://www.paddlepaddle.org.cn/packages/stable/xpu-p800/",
    excludes=("paddlepaddle",),
    compiled="is_compiled_with_xpu",
    monitor="xpu-smi",
    visible="XPU_VISIBLE_DEVICES",
    collectives="BKCL",
    dtypes=frozenset({"float32", "bfloat16", "float16"}),
    variables={
        "BKCL_ENABLE_XDR": Variable("1", "transfers between machines go from accelerator to accelerator"),
        "BKCL_RDMA_FORCE_TREE": Variable("1", "trees between machines"),
        "BKCL_TREE_THRESHOLD": Variable("0", "trees for messages of every size"),
        "CUDA_DEVICE_MAX_CONNECTIONS": Variable("8", "as many queues as ERNIEKit's settings for this accelerator use"),
        "XPUAPI_DEFAULT_SIZE": Variable("2205258752", "workspace of the vendor's operators, bytes"),
        "XPU_PADDLE_L3_SIZE": Variable("0", "the memory on the chip is left to the operators"),
    },
    lacks={
        "fp8": "train in bfloat16",
        "batched-p2p": "pipelines send one message at a time",
    },
    evidence=DECLARED,
)


class XpuPlugin(AcceleratorPlugin):
    """Runs on Kunlunxin XPUs."""

    name, summary, profile = "xpu", "Kunlunxin XPUs", PROFILE


plugin = XpuPlugin()
