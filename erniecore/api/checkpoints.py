"""For tools that read, verify and write checkpoints and model directories outside of a run. Imports no Paddle."""

from erniecore_checkpoint.directories import MODEL_MANIFEST, verify_directory
from erniecore_checkpoint.files import translated
from erniecore_checkpoint.manifest import (
    MANIFEST_NAME,
    Manifest,
    checkpoint_name,
    list_checkpoints,
    read_manifest,
    step_of,
)
from erniecore_checkpoint.reader import Checkpoint, load_checkpoint
from erniecore_checkpoint.retention import prune
from erniecore_checkpoint.save import save_checkpoint
from erniecore_checkpoint.verify import Finding, verify_checkpoint

from erniecore.engine.training.skipped_steps import find_list as find_bad_batch_list

__all__ = [
    "Checkpoint",
    "Finding",
    "MANIFEST_NAME",
    "MODEL_MANIFEST",
    "Manifest",
    "checkpoint_name",
    "find_bad_batch_list",
    "list_checkpoints",
    "load_checkpoint",
    "prune",
    "read_manifest",
    "save_checkpoint",
    "step_of",
    "translated",
    "verify_checkpoint",
    "verify_directory",
]
