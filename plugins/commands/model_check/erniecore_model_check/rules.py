"""Rules that consumers of a model directory expect, and the checks of them: those of transformers and servers for the Hugging
Face format (``HF_RULES``), and running any exporter's rules (hook ``ernie_contract_rules``). Each rule names its source;
docs/reference/serving-contract.md is generated from these tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from erniecore.api import CheckpointError, UsageError
from erniecore.api.files import read_object
from erniecore.api.installation import assemble, load

if TYPE_CHECKING:
    from erniecore.api.model_files import StoredTensor

FAST = "FastDeploy 2.3, `fastdeploy/config.py`"
_HF = "transformers 5.23"
_PAIRS = {"ernie4_5": "Ernie4_5ForCausalLM", "ernie4_5_moe": "Ernie4_5_MoeForCausalLM"}
_MOE_KEYS = ("moe_num_experts", "moe_k", "moe_intermediate_size", "moe_layer_start_index", "moe_layer_end_index")
CONFIG, SECTION = "config.json", "quantization_config"


class Directory(NamedTuple):
    """What is checked: the path, config.json, the tensors by name, and the files: their metadata, and which has what."""

    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    formats: Mapping[str, str]
    files: Mapping[str, str]

    def tensor(self, name: str) -> str:
        """Where ``name`` is, for a message."""
        return f"{self.files.get(name, 'weights')}: {name}"

    def key(self, name: str) -> str:
        """Where a key of config.json is, for a message."""
        return f"{CONFIG}: {name}"


class Break(NamedTuple):
    """One thing that is wrong: the file with the key or tensor, what is there, and what should be."""

    where: str
    found: str
    expected: str


@dataclass(frozen=True)
class Rule:
    """``check`` yields what is wrong. ``name``: stable. ``source``: who asks for it."""

    name: str
    text: str
    source: str
    check: Callable[[Directory], Iterator[Break]]


class Broken(NamedTuple):
    """A rule that a directory breaks, and where."""

    rule: str
    where: str
    found: str
    expected: str
    source: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.where}: found {self.found}, expected {self.expected}"


def check_directory(path: Path, contract: str = "hf") -> list[Broken]:
    """Every rule that the exporter ``contract`` has for a directory with this config.json and that ``path`` breaks.

    Raises:
        CheckpointError: config.json or the weights cannot be read. PluginNotFound: no such exporter.
        UsageError: the exporter has no rules.
    """
    directory = open_directory(path)
    rules = OWN_RULES.get(contract)
    if rules is None:
        exporter = load("exporter", contract)
        rules = assemble({"exporter": exporter}).hook.ernie_contract_rules(architecture=directory.config)
    if rules is None:
        raise UsageError(
            f"the exporter {contract} has no rules for directories", where="--contract", fix="--contract hf"
        )
    return [
        Broken(rule.name, at.where, at.found, at.expected, rule.source)
        for rule in rules
        for at in rule.check(directory)
    ]


def require_contract(path: Path, contract: str) -> None:
    """Raises ``CheckpointError`` with the first broken rules of ``contract``."""
    problems = check_directory(path, contract)
    if problems:
        text = "the export breaks the contract with servers: " + "; ".join(map(str, problems[:5]))
        raise CheckpointError(text, code="ERN-K030")


def open_directory(path: Path) -> Directory:
    """The headers in ``path``. Raises ``CheckpointError`` when config.json or the weights cannot be read."""
    from erniecore.api.model_files import open_weights

    config = read_object(path / CONFIG, CheckpointError, code="ERN-K021")
    opened = open_weights(path)
    formats = {file.name: _format(file) for file in {file for file, _ in opened.values()}}
    tensors = {name: tensor for name, (_, tensor) in opened.items()}
    return Directory(path, config, tensors, formats, {name: file.name for name, (file, _) in opened.items()})


def _format(file: Path) -> str:
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    return str(header.get("__metadata__", {}).get("format", ""))


def _one_dtype_key(d: Directory) -> Iterator[Break]:
    if "torch_dtype" not in d.config or "dtype" in d.config:
        found = " and ".join(key for key in ("torch_dtype", "dtype") if key in d.config) or "neither"
        yield Break(d.key("torch_dtype"), found, "torch_dtype and no dtype")


def _rope(d: Directory) -> Iterator[Break]:
    yield from rope_base(d)
    theta, nested = d.config.get("rope_theta"), (d.config.get("rope_parameters") or {}).get("rope_theta")
    if theta and nested != theta:
        yield Break(d.key("rope_parameters.rope_theta"), str(nested), str(theta))


def rope_base(d: Directory) -> Iterator[Break]:
    """The key ``rope_theta`` is missing."""
    if not d.config.get("rope_theta"):
        yield Break(d.key("rope_theta"), "nothing", "the base at the top level")


def _pair(d: Directory) -> Iterator[Break]:
    model_type, found = str(d.config.get("model_type")), d.config.get("architectures")
    if model_type not in _PAIRS:
        yield Break(d.key("model_type"), model_type, "a model that these servers get from here: " + ", ".join(_PAIRS))
    elif found != [_PAIRS[model_type]]:
        yield Break(d.key("architectures"), f"{found} with model_type {model_type}", str([_PAIRS[model_type]]))


def _moe_keys(d: Directory) -> Iterator[Break]:
    if d.config.get("model_type") == "ernie4_5_moe":
        yield from (Break(d.key(key), "nothing", "a number") for key in _MOE_KEYS if key not in d.config)


def _no_remote_code(d: Directory) -> Iterator[Break]:
    if "auto_map" in d.config:
        yield Break(d.key("auto_map"), "code that is not here", "no such key")


def _metadata(d: Directory) -> Iterator[Break]:
    for file, found in d.formats.items():
        if found != "pt":
            yield Break(f"{file}: metadata format", repr(found), "'pt'")


def _files(d: Directory) -> Iterator[Break]:
    needed = ["generation_config.json"]
    if (d.path / "tokenizer_config.json").exists() or (d.path / "tokenizer.model").exists():
        needed += ["tokenizer_config.json", "special_tokens_map.json"]
    if len(d.formats) > 1:
        needed.append("model.safetensors.index.json")
    yield from (Break(name, "no such file", "a file") for name in needed if not (d.path / name).is_file())


def _head(d: Directory) -> Iterator[Break]:
    tied = bool(d.config.get("tie_word_embeddings"))
    if tied == ("lm_head.weight" in d.tensors):
        expected = f"{'none' if tied else 'one'}, as tie_word_embeddings is {str(tied).lower()}"
        yield Break("weights: lm_head.weight", "a tensor" if tied else "nothing", expected)


def _layers(d: Directory) -> Iterator[Break]:
    for index in range(int(d.config.get("num_hidden_layers", 0))):
        place = f"model.layers.{index}."
        names = [f"self_attn.{x}_proj" for x in "qkvo"] + ["input_layernorm", "post_attention_layernorm"]
        if not is_moe(d, index):
            names += [f"mlp.{x}_proj" for x in ("gate", "up", "down")]
        else:
            experts = range(int(d.config["moe_num_experts"]))
            names += ["mlp.gate", *(f"mlp.experts.{e}.{x}_proj" for e in experts for x in ("gate", "up", "down"))]
        for name in names:
            if f"{place}{name}.weight" not in d.tensors:
                yield Break(f"weights: {place}{name}.weight", "nothing", "a tensor")


def is_moe(d: Directory, index: int) -> bool:
    """Whether layer ``index`` has experts, as config.json says."""
    if d.config.get("model_type") != "ernie4_5_moe":
        return False
    start, end = int(d.config.get("moe_layer_start_index", 0)), int(d.config.get("moe_layer_end_index", -1))
    end = int(d.config["num_hidden_layers"]) - 1 if end == -1 else end
    return start <= index <= end and (index + 1) % int(d.config.get("moe_layer_interval", 1)) == 0


def router(d: Directory) -> Iterator[Break]:
    """Routers that are not float32."""
    for name, tensor in d.tensors.items():
        if (name.endswith(".mlp.gate.weight") or name.endswith("e_score_correction_bias")) and tensor.dtype != "F32":
            yield Break(d.tensor(name), tensor.dtype, "F32")


def _fp8_config(d: Directory) -> Iterator[Break]:
    section = d.config.get(SECTION)
    stored = any(tensor.dtype == "F8_E4M3" for tensor in d.tensors.values())
    if section is None:
        if stored:
            yield Break(d.key(SECTION), "nothing", "quant_method fp8, as there are FP8 weights")
        return
    expected = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    for key, value in expected.items():
        if section.get(key) != value:
            yield Break(d.key(f"{SECTION}.{key}"), repr(section.get(key)), repr(value))


def _fp8_scales(d: Directory) -> Iterator[Break]:
    for name, tensor in d.tensors.items():
        if tensor.dtype != "F8_E4M3":
            continue
        scale_name = name.removesuffix("weight") + "weight_scale_inv"
        scale = d.tensors.get(scale_name)
        wanted = tuple(size // 128 for size in tensor.shape)
        if any(size % 128 for size in tensor.shape):
            yield Break(d.tensor(name), str(list(tensor.shape)), "sides that are multiples of 128")
        elif scale is None or scale.dtype != "F32" or scale.shape != wanted:
            found = "nothing" if scale is None else f"{scale.dtype} {list(scale.shape)}"
            yield Break(d.tensor(scale_name), found, f"F32 {list(wanted)}")


def _fp8_skipped(d: Directory) -> Iterator[Break]:
    section = d.config.get(SECTION)
    if section is None:
        return
    skipped = tuple(section.get("modules_to_not_convert") or ())
    for name, tensor in d.tensors.items():
        module = name.removesuffix(".weight")
        if module == name or len(tensor.shape) != 2:
            continue
        listed = any(module == entry or module.startswith(f"{entry}.") for entry in skipped)
        if listed == (tensor.dtype == "F8_E4M3"):
            key = d.key(f"{SECTION}.modules_to_not_convert")
            yield Break(key, f"{module} {'listed' if listed else 'not listed'}", f"the opposite: it is {tensor.dtype}")


HF_RULES: tuple[Rule, ...] = (
    Rule("one-dtype-key", "config.json has `torch_dtype` and no `dtype`: both are refused, and `dtype` alone is taken for the \
Paddle layout.", FAST, _one_dtype_key),
    Rule("rope", "`rope_theta` at the top level (a missing one becomes 10000) and the same in `rope_parameters`.", f"{FAST}; \
{_HF}, `modeling_rope_utils.py`", _rope),
    Rule("architecture", "`model_type` and `architectures` belong together.", f"{_HF}, `models/ernie4_5*`", _pair),
    Rule("moe-keys", "Sizes of experts and which layers have them.", f"{_HF}, `configuration_ernie4_5_moe.py`", _moe_keys),
    Rule("no-remote-code", "No `auto_map`.", f"{_HF}, `dynamic_module_utils.py`", _no_remote_code),
    Rule("metadata", "Metadata `format: pt` in every weight file.", f"{_HF}, `modeling_utils.py`", _metadata),
    Rule("files", "generation_config.json, the tokenizer's files where there is one, an index for several weight files.",
         "the published -PT directories", _files),
    Rule("head", "`lm_head.weight` exactly when the embedding is not tied.", "the published -PT directories", _head),
    Rule("names", "Every layer has its tensors under the public names.", f"{_HF}, `modeling_ernie4_5*.py`", _layers),
    Rule("router", "Router weights and selection biases are float32.", "the published -PT directories", router),
    Rule("fp8-config", "FP8 is announced as `quant_method: fp8`, blocks of 128x128, dynamic inputs: the only offline form that \
the torch layout has in FastDeploy.", f"FastDeploy 2.3; {_HF}, `FineGrainedFP8Config`", _fp8_config),
    Rule("fp8-scales", "Each FP8 matrix has `weight_scale_inv` float32 by whole blocks.", f"{_HF}, \
`integrations/finegrained_fp8.py`", _fp8_scales),
    Rule("fp8-skipped", "`modules_to_not_convert` names exactly the matrices that are not FP8.", f"{_HF}, \
`quantizer_finegrained_fp8.py`", _fp8_skipped),
)  # fmt: skip

#: contract -> rules that stand here; the others are those of exporters
OWN_RULES: Mapping[str, tuple[Rule, ...]] = {"hf": HF_RULES}
