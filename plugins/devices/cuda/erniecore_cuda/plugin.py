"""NVIDIA GPUs through Paddle's CUDA build: the profile, as data."""

from __future__ import annotations

from erniecore_accelerators import AcceleratorPlugin, AcceleratorSpec, Profile, Variable

GB = 10**9
_FIXED = "reductions in a fixed order, so that results repeat bit for bit"
_SHEET = "NVIDIA's data sheet, dense"

PROFILE = Profile(
    name="cuda",
    title="NVIDIA GPU",
    place="gpu",
    packages=(("paddlepaddle-gpu", "PaddlePaddle built for CUDA"),),
    install="pip install 'paddlepaddle-gpu==3.3.*' -i https://www.paddlepaddle.org.cn/packages/stable/cu126/",
    excludes=("paddlepaddle",),
    compiled="is_compiled_with_cuda",
    monitor="nvidia-smi",
    visible="CUDA_VISIBLE_DEVICES",
    collectives="NCCL",
    dtypes=frozenset({"float32", "bfloat16", "float16"}),
    variables={
        "CUBLAS_WORKSPACE_CONFIG": Variable(":4096:8", _FIXED, deterministic=True),
        "CUDA_DEVICE_MAX_CONNECTIONS": Variable("1", "kernels start in the order in which they are issued"),
        "FLAGS_cudnn_deterministic": Variable("1", _FIXED, deterministic=True),
        "FLAGS_embedding_deterministic": Variable("1", _FIXED, deterministic=True),
        "NCCL_ALGO": Variable("Ring", _FIXED, deterministic=True),
        "NVIDIA_TF32_OVERRIDE": Variable("0", "float32 products keep float32's precision"),
    },
    accelerators={
        "NVIDIA A100-SXM4-80GB": AcceleratorSpec(80 * GB, {"bfloat16": 312, "float16": 312}, 2.0e12, _SHEET),
        "NVIDIA H100 80GB HBM3": AcceleratorSpec(
            80 * GB, {"bfloat16": 989, "float16": 989, "float8": 1979}, 3.35e12, _SHEET
        ),
        "NVIDIA H200": AcceleratorSpec(141 * GB, {"bfloat16": 989, "float16": 989, "float8": 1979}, 4.8e12, _SHEET),
    },
    evidence="declared; no training step has run on such a device yet",
)


class CudaPlugin(AcceleratorPlugin):
    """Runs on NVIDIA GPUs."""

    name, summary, profile = "cuda", "NVIDIA GPUs", PROFILE


plugin = CudaPlugin()
