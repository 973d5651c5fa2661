"""For tools that read, verify and write checkpoints and model directories outside of a run. Imports no Paddle."""

from erniecore.checkpoint.directories import MODEL_MANIFEST, verify_directory
from erniecore.checkpoint.files import translated
from erniecore.checkpoint.manifest import (
    MANIFEST_NAME,
    Manifest,
    checkpoint_name,
    list_checkpoints,
    read_manifest,
    step_of,
)
from erniecore.checkpoint.reader import Checkpoint, load_checkpoint
from erniecore.checkpoint.retention import prune
from erniecore.checkpoint.save import save_checkpoint
from erniecore.checkpoint.verify import Finding, verify_checkpoint
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
