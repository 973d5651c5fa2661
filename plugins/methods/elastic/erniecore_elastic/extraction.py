"""``ernie extract``: writes a smaller model inside a model, tensor by tensor from file to file. What is finished stays when the
command is killed, and the same command goes on.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from erniecore_checkpoint.safetensors_write import (
    INDEX_NAME,
    SINGLE_NAME,
    SafetensorsFile,
    WrittenFile,
    WrittenTensor,
    index_json,
    shard_files,
)
from erniecore_quantize.resumable import Progress, resumable_directory

from erniecore.api import Json, UsageError
from erniecore.api.installation import assemble, load
from erniecore.api.model import ElasticModel, ElasticSizes, ModelBundle
from erniecore.api.quantization import check_target, model_digest, quantizer_of, with_provenance
from erniecore.api.run import Located, described_by, left_alone, locate, open_device, plugin_for_directory, read_bundle
from erniecore_elastic.reduction import Part, check_shape, choose, part_tensors, reduced_config
from erniecore_elastic.usage import USAGE_NAME, read_usage

if TYPE_CHECKING:
    from erniecore_checkpoint.tensors import Tensor

    from erniecore.api import Plugin
    from erniecore.api.model import Layout
    from erniecore.api.model_files import Checked

#: bytes of a file: what a killed command does again
_SHARD_BYTES = 2_000_000_000


@dataclass(frozen=True)
class Sizes:
    """What the user wants: sizes, 0 where nothing is said; where the usage of experts is found: a run or its file, or texts
    that are encoded by ``method``, ``max_seq_len`` tokens each."""

    depth: int = 0
    experts: int = 0
    selected: int = 0
    usage: Path | None = None
    data: Sequence[str] = ()
    method: str = "pt"
    max_seq_len: int = 512


class Extracted(NamedTuple):
    """What was written, or would be.

    Attributes:
        path: the directory. part: which part it is. sizes: of the whole model.
        parameters: of the smaller model; ``whole``: of the large one. num_bytes: of its weights. usage: where the choice of
            experts comes from. notes: for the user.
    """

    path: Path
    part: Part
    sizes: ElasticSizes
    parameters: int
    whole: int
    num_bytes: int
    usage: str
    notes: list[str]


@dataclass(frozen=True)
class _Opened:
    """The large model: where its files are, its plugin and settings, without a model; its weights, compared with its names."""

    path: Path
    plugin: Plugin
    section: Mapping[str, Any]
    bundle: ModelBundle
    checked: Checked
    sizes: ElasticSizes

    def call(self, hook: str, **given: Any) -> Any:
        """A hook of the model plugin."""
        return assemble({"model": self.plugin}).call(self.plugin, hook, **given)


def extract_directory(source: Path, out: Path, wanted: Sizes, *, dry_run: bool = False) -> Extracted:
    """Write the part of the model in ``source`` that has the ``wanted`` sizes; opens ``cpu``.

    Raises:
        UsageError: a model that cannot run a part of itself, packed weights, a checkpoint, sizes that it cannot have, or nothing
            that says which experts are used. CheckpointError: the target is not free, damaged files. NumericsError: weights
            that are not finite. DataError: texts that cannot be used.
    """
    located = _located(source)
    if not dry_run:
        check_target(out)
    notes = [*open_device(), *located.notes]
    opened = _open(located.path)
    usage, origin = _usage(opened, source, wanted)
    part = choose(opened.sizes, wanted.depth, wanted.experts, wanted.selected, usage)
    bundle, tensors = _smaller(opened, part)
    bundle = with_provenance(
        bundle, {**bundle.provenance, "base": str(source), "part": _facts(part)}, bundle.generation
    )
    facts = {"source": model_digest(opened.path), "part": _facts(part)}
    if not dry_run:
        notes += _write(bundle, tensors, out, facts)
    return Extracted(
        out,
        part,
        opened.sizes,
        sum(math.prod(tensor.shape) for tensor in tensors.values()),
        sum(math.prod(tensor.shape) for _, tensor in opened.checked.stored.values()),
        sum(tensor.num_bytes for tensor in tensors.values()),
        origin if part.experts is not None else "",
        [*notes, *left_alone(opened.checked.ignored)],
    )


def _located(source: Path) -> Located:
    located = locate(source)
    if located.adapter is not None:
        words = ["ernie", "merge", str(located.adapter), "--base", str(located.path), "--out", f"{source}-merged"]
        raise UsageError("this run trained an adapter beside the weights", where=str(source), next=shlex.join(words))
    if located.is_checkpoint:
        words = ["ernie", "export", str(source), "--to", "hf", "--out", f"{source}-model"]
        raise UsageError(
            "a checkpoint has our own names; write a model directory first", where=str(source), next=shlex.join(words)
        )
    return located


def _open(path: Path) -> _Opened:
    from erniecore.api.building import build_bundle
    from erniecore.api.model_files import QUANTIZATION_KEY, check_weights

    plugin = load("model", plugin_for_directory(path))
    section: dict[str, Any] = {"path": str(path)}
    bundle, _, _ = read_bundle(plugin, section, None)
    if quantizer_of(bundle.architecture) or QUANTIZATION_KEY in bundle.architecture:
        fix = "extract from the original model, then quantize what was written"
        raise UsageError("these weights are packed: an expert is no tensor of its own", where=str(path), fix=fix)
    if "mtp" in plugin.Config.model_fields and _has_mtp(path):
        section["mtp"] = True
    bundle, _ = build_bundle(plugin, section, path, "float32")
    sizes = bundle.model.elastic_sizes() if isinstance(bundle.model, ElasticModel) else None
    if sizes is None:
        raise UsageError(
            "this model cannot run a part of itself",
            where=str(path),
            found=plugin.name,
            expected="ernie45, ernie45-moe",
        )
    checked = check_weights(path, bundle.architecture, bundle.adapter)
    return _Opened(path, plugin, section, described_by(path, bundle), checked, sizes)


def _has_mtp(path: Path) -> bool:
    """Whether the files have multi-token-prediction layers."""
    from erniecore.api.model_files import open_weights

    return any("mtp" in name for name in open_weights(path))


def _usage(opened: _Opened, source: Path, wanted: Sizes) -> tuple[Sequence[Sequence[float]] | None, str]:
    """The usage of experts by row, and where it comes from."""
    if not wanted.experts or wanted.experts >= opened.sizes.experts:
        return None, ""
    if wanted.data:
        from erniecore_elastic.measured import measured_usage

        given = (wanted.data, wanted.method, wanted.max_seq_len)
        return measured_usage(opened.path, opened.call, opened.sizes, *given), f"measured on {', '.join(wanted.data)}"
    places = [wanted.usage] if wanted.usage else [source, source.parent]
    for place in places:
        run = place.parent if place.is_file() else place
        found = read_usage(run, opened.sizes)
        if found is not None:
            return found, f"recorded in {run / USAGE_NAME}"
    if wanted.usage:
        raise UsageError("no usage was recorded there", where=str(wanted.usage), expected=f"a run with {USAGE_NAME}")
    return None, ""


def _smaller(opened: _Opened, part: Part) -> tuple[ModelBundle, dict[str, Tensor]]:
    """The smaller model without a layer, and its tensors."""
    source = opened.bundle.architecture
    shape = opened.call("ernie_decoder_shape", architecture=source)
    architecture: Json = reduced_config(source, shape, part)
    check_shape(opened.call("ernie_decoder_shape", architecture=architecture), shape, part)
    adapter = opened.call("ernie_state_adapter", architecture=architecture)
    used = [name for entry in opened.checked.maps for name in entry.sources]
    own = adapter.maps(opened.checked.layout, used)
    layout: Layout = opened.call("ernie_model_layout", config=opened.plugin.Config(**opened.section))
    names, rows = _names([entry.name for entry in own], layout, part, opened.sizes)
    tensors = part_tensors(opened.checked.stored, opened.checked.maps, own, part, names, rows)
    return replace(opened.bundle, model=None, architecture=architecture, adapter=adapter), tensors


def _names(
    own: Sequence[str], layout: Layout, part: Part, sizes: ElasticSizes
) -> tuple[dict[str, str], dict[str, int]]:
    """Name in the smaller model -> in the large one, and -> row of its experts."""
    assert layout.stages is not None
    before, names, rows = f"{layout.stages.layers}.", {}, {}
    for name in own:
        if name.startswith(before):
            number, _, rest = name.removeprefix(before).partition(".")
            place = part.layers[int(number)]
            names[name], rows[name] = f"{before}{place}.{rest}", place
            continue
        names[name], rows[name] = name, 0
        for further in layout.stages.further:
            number, _, _ = name.removeprefix(f"{further}.").partition(".")
            if name.startswith(f"{further}.") and number.isdigit():
                rows[name] = min(sizes.layers + int(number), sizes.rows - 1) if sizes.rows else 0
    return names, rows


def _facts(part: Part) -> dict[str, Any]:
    experts = None if part.experts is None else [list(row) for row in part.experts]
    return {"layers": list(part.layers), "experts": experts, "k": part.num_selected}


def _write(bundle: ModelBundle, tensors: Mapping[str, Tensor], out: Path, facts: Mapping[str, Any]) -> list[str]:
    """All files of the directory; one tensor is in memory at a time."""
    from erniecore.api.model_files import provenance, write_assets, write_directory_manifest, write_json
    from erniecore.api.run import stored_dtype

    with resumable_directory(out, facts) as progress:
        files = shard_files(tensors, "model", _SHARD_BYTES)
        if len(files) == 1:
            files = [(SINGLE_NAME, files[0][1])]
        written = [_write_file(progress, name, {one: tensors[one] for one in names}) for name, names in files]
        if len(written) > 1:
            write_json(progress.directory / INDEX_NAME, index_json(written))
        write_assets(bundle, progress.directory, stored_dtype(progress.directory))
        hashes = {file.name: file.sha256 for file in written}
        write_directory_manifest(progress.directory, provenance(bundle, written), hashes)
    return progress.notes


def _write_file(progress: Progress, name: str, tensors: Mapping[str, Tensor]) -> WrittenFile:
    """One file, unless an earlier process finished it."""
    if name not in progress.files:
        file = SafetensorsFile(progress.directory / name, {n: (t.dtype, t.shape) for n, t in tensors.items()})
        try:
            for one in file.order:
                file.add(one, tensors[one])
                tensors[one].release()
            done = file.finish()
        finally:
            file.close()
        progress.finish(name, {"bytes": done.num_bytes, "sha256": done.sha256})
    record = progress.files[name]
    found = {n: WrittenTensor(t.dtype, t.shape, 0, t.num_bytes, "") for n, t in tensors.items()}
    return WrittenFile(name, record["bytes"], record["sha256"], found)
