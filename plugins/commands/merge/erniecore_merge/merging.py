"""``ernie merge``: an adapter into the weights of its base, compared with the unmerged model, written and read back."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from erniecore.api import NumericsError, UsageError
from erniecore.api.adapter import AdapterCapability
from erniecore.api.building import atomic_directory, check_target, with_provenance
from erniecore.api.corpus import file_hash
from erniecore.api.run import (
    adapter_directory,
    adapter_plugin,
    base_notes,
    base_of,
    load_adapter,
    load_bundle,
    open_device,
    origin_of,
    tokenizer_home,
)

if TYPE_CHECKING:
    from erniecore.api.model import ModelBundle
    from erniecore.api.model_files import Array

#: merged and unmerged logits may differ by this share of the largest one
TOLERANCE = 1e-4


class Merged(NamedTuple):
    """What a merge did.

    Attributes:
        path: the merged model. difference: largest difference of merged and unmerged logits on the probe prompts, in
            float32; ``largest``: the largest logit there. dtype: of the written weights. notes: for the user.
    """

    path: Path
    difference: float
    largest: float
    dtype: str
    notes: list[str]


def merge_directory(source: Path, base: Path | None, out: Path) -> Merged:
    """Write ``base`` with the adapter in ``source`` merged into its weights; opens the ``cpu`` device.

    Merged in float32, compared with the unmerged model, then stored in the dtype of ``base`` and read back.

    Args:
        base: ``None``: the one that the adapter's run was trained on.

    Raises:
        UsageError: no base is known, already merged into this base, or an adapter that cannot be merged.
        NumericsError: merged and unmerged logits differ by more than ``TOLERANCE`` of the largest.
        CheckpointError: the target is not free, something is damaged or does not fit.
    """
    directory = adapter_directory(source)
    check_target(out)
    plugin, own = adapter_plugin(directory), fingerprint(directory)
    base = _known_base(directory) if base is None else base
    if AdapterCapability.MERGE not in plugin.capabilities:
        raise UsageError("this adapter cannot be merged", where=str(directory), found=plugin.name)
    merged_before = _merged_into(base)
    if own in merged_before:
        raise UsageError("this adapter is merged into this base already", where=str(base), fix="use it as it is")
    notes = open_device() + _other_base(directory, base)
    # these import paddle, which reads the device's environment when it is imported
    from erniecore_export.exporting import verify_export

    from erniecore.api.model_files import write_model_files

    opened = load_bundle(base, home=tokenizer_home(directory, base))
    bundle = opened.bundle
    bundle, difference, largest = _merge(bundle, directory)
    provenance = {**bundle.provenance, "base": str(base), "adapter": plugin.name, "merged": [*merged_before, own]}
    bundle = with_provenance(bundle, provenance, bundle.generation)
    with atomic_directory(out) as target:
        write_model_files(bundle, target, dtype=opened.dtype)
        verify_export(bundle, target, opened.dtype)
    return Merged(out, difference, largest, opened.dtype, [*notes, *opened.notes])


def _merge(bundle: ModelBundle, directory: Path) -> tuple[ModelBundle, float, float]:
    """The merged model, which takes the place of the given one; largest difference, largest logit."""
    import numpy as np
    from erniecore_export.exporting import probe_logits, probe_prompts

    from erniecore.api.model_files import with_score_head

    probes = probe_prompts(bundle)
    model: Any = load_adapter(bundle.model, directory)
    before: Sequence[Array] = [probe_logits(model, probe) for probe in probes]
    model.merge()
    difference = max(float(np.abs(probe_logits(model, p) - b).max()) for p, b in zip(probes, before, strict=True))
    largest = max(float(np.abs(b).max()) for b in before)
    if not difference <= TOLERANCE * max(largest, 1.0):
        raise NumericsError(
            "merged and unmerged model differ; nothing was written",
            where=str(directory),
            found=f"logits differ by {difference:.3g}, the largest is {largest:.3g}",
            expected=f"at most {TOLERANCE * max(largest, 1.0):.3g}",
        )
    return with_score_head(replace(bundle, model=model.unload())), difference, largest


def fingerprint(directory: Path) -> str:
    """sha256 of the adapter's weight files, in one; identifies an adapter wherever it is stored."""
    hashes = [file_hash(path) for path in sorted(directory.glob("*.safetensors"))]
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def _known_base(directory: Path) -> Path:
    """What the run that trained the adapter was given as its model."""
    try:
        return base_of(directory)
    except UsageError as error:
        changed = error.code == "ERN-C021"
        error.fix = "put back what it was, or name it to merge with it as it is" if changed else "name it"
        error.next = f"ernie merge {directory} --base DIR --out DIR"
        raise


def _merged_into(base: Path) -> list[str]:
    merged = origin_of(base).get("merged")
    return [str(one) for one in merged] if isinstance(merged, list) else []


def _other_base(directory: Path, base: Path) -> list[str]:
    trained_on, notes = origin_of(directory).get("base"), base_notes(directory, base)
    same = not trained_on or Path(str(trained_on)).absolute() == base.absolute()
    if same or any(note.startswith("ERN-C021") for note in notes):
        return notes
    return [*notes, f"the adapter was trained on {trained_on}, not on {base}"]
