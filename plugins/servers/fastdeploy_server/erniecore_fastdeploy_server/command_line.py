"""The command that starts FastDeploy for a model directory: a pure function of the settings and of config.json. Options are
those of FastDeploy 2.3 (docs/parameters.md); parsers by checkpoint are those of its documentation of each model.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erniecore_fastdeploy.contract import layout_of
from erniecore_fastdeploy.contract_vision import OCR, VL

from erniecore.api import EnvironmentFault, UsageError, nearest
from erniecore.api.files import read_object
from erniecore_fastdeploy_server.config import FastDeployConfig

#: what the settings say already, by the name that FastDeploy has for it
OWN = {
    "model": "--model", "host": "host", "port": "port", "metrics-port": "metrics_port",
    "engine-worker-queue-port": "queue_port", "cache-queue-port": "cache_port", "api-key": "key_file",
    "served-model-name": "name", "tensor-parallel-size": "tensor_parallel", "max-model-len": "context",
    "max-num-seqs": "rows", "quantization": "quantization", "reasoning-parser": "reasoning_parser",
    "tool-call-parser": "tool_parser", "speculative-config": "speculative",
}  # fmt: skip


def command_line(settings: FastDeployConfig, directory: Path, config: Mapping[str, Any], template: str) -> list[str]:
    """The words of the command.

    Args:
        config: content of config.json. template: the chat template; empty: there is none.
    Raises:
        UsageError: an option that is a setting, or a drafter that the model lacks.
    """
    context = settings.context or int(config.get("max_position_embeddings", 0))
    reasoning, tools = parsers_of(config, template)
    values: dict[str, Any] = {
        "model": directory.resolve(),
        "host": settings.host,
        "port": settings.port,
        "metrics-port": settings.metrics_port,
        "engine-worker-queue-port": settings.queue_port,
        "cache-queue-port": settings.cache_port,
        "served-model-name": settings.name,
        "tensor-parallel-size": settings.tensor_parallel if settings.tensor_parallel > 1 else "",
        "max-model-len": context or "",
        "max-num-seqs": settings.rows or "",
        "quantization": settings.quantization,
        # weights in the Hugging Face layout need this loader
        "load-choices": "default_v1" if layout_of(config) == "torch" else "",
        "reasoning-parser": reasoning if settings.reasoning_parser == "auto" else settings.reasoning_parser,
        "tool-call-parser": tools if settings.tool_parser == "auto" else settings.tool_parser,
        "speculative-config": _drafter(settings.speculative, directory, config),
        "mm-processor-kwargs": processor_of(directory, config, settings.options),
    }
    words = [word for name, value in values.items() if value != "" for word in (f"--{name}", str(value))]
    return [*shlex.split(settings.command), *words, *_further(settings.options)]


def parsers_of(config: Mapping[str, Any], template: str) -> tuple[str, str]:
    """FastDeploy's parsers of reasoning and of tool calls for a checkpoint; empty: it writes neither.

    Vision-language models: ``ernie-45-vl``, those that think ``ernie-45-vl-thinking`` for both; text models that think:
    ``ernie-x1`` for both. PaddleOCR-VL writes neither.
    """
    thinks = "<think>" in template
    if config.get("model_type") == OCR:
        return "", ""
    if "vision_config" in config or "vl" in str(config.get("model_type", "")):
        if "<tool_call>" in template or "thinking_mode" in template:
            return "ernie-45-vl-thinking", "ernie-45-vl-thinking"
        return "ernie-45-vl", ""
    return ("ernie-x1", "ernie-x1" if "<tool_call>" in template else "") if thinks else ("", "")


#: file -> key there -> what FastDeploy calls it; its own values come before those of the files
_PROCESSOR = {
    "preprocessor_config.json": {"shortest_edge": "image_min_pixels", "longest_edge": "image_max_pixels"},
    "video_preprocessor_config.json": {
        "shortest_edge": "video_min_pixels",
        "longest_edge": "video_max_pixels",
        "fps": "video_fps",
        "min_frames": "video_min_frames",
        "max_frames": "video_max_frames",
        "num_frames": "video_target_frames",
    },
}


def processor_of(directory: Path, config: Mapping[str, Any], options: tuple[str, ...] = ()) -> str:
    """The sizes and frames that an ERNIE 4.5 VL was trained with, as JSON: the server has values of its own and does not read
    them from the model's files. Numbers that are not whole it would take for a mistake, and drop all. Empty for other models, and
    where ``options`` say it."""
    named = any(option.lstrip("-").startswith("mm-processor-kwargs") for option in options)
    if config.get("model_type") != VL or named:
        return ""
    found: dict[str, int] = {}
    for name, keys in _PROCESSOR.items():
        file = directory / name
        said = read_object(file, EnvironmentFault) if file.is_file() else {}
        size = said.get("size")
        values = {**said, **(size if isinstance(size, Mapping) else {})}
        found |= {
            theirs: int(values[key])
            for key, theirs in keys.items()
            if isinstance(values.get(key), int | float) and values[key] == int(values[key])
        }
    return json.dumps(found) if found else ""


def _drafter(kind: str, directory: Path, config: Mapping[str, Any]) -> str:
    if kind == "off":
        return ""
    if kind == "ngram":
        return json.dumps({"method": "ngram", "num_speculative_tokens": 5})
    if not config.get("num_nextn_predict_layers"):
        raise UsageError(
            "this model has no layers for multi-token prediction",
            where="speculative",
            found="mtp",
            fix="speculative=ngram",
        )
    return json.dumps({"method": "mtp", "num_speculative_tokens": 1, "model": str(directory.resolve())})


def _further(options: tuple[str, ...]) -> list[str]:
    words = []
    for option in options:
        name, given, value = option.lstrip("-").partition("=")
        if name in OWN:
            raise UsageError(
                "this option of FastDeploy is a setting", where="options", found=option, fix=f"{OWN[name]}=…"
            )
        close = nearest(name, OWN)
        if close and close.replace("-", "") == name.replace("_", "").replace("-", ""):
            raise UsageError("no such option of FastDeploy", where="options", found=option, expected=close)
        words += [f"--{name}", value] if given else [f"--{name}"]
    return words
