"""For corpus plugins: samples that exist before a run, and which of them form a step. Imports numpy."""

from erniecore_sampler.mixing import Mix, num_samples, stretches
from erniecore_sampler.steps import BatchSampler, MicroBatch, SamplerSettings
from erniecore_system.durable import sync_directory
from erniecore_system.files import file_hash

from erniecore import codes
from erniecore.config.core import Source
from erniecore.data.collate import collate
from erniecore.data.corpus import Corpus
from erniecore.data.dataloader import DataLoader
from erniecore.data.dataset import Dataset

__all__ = [
    "BatchSampler",
    "Corpus",
    "DataLoader",
    "Dataset",
    "MicroBatch",
    "Mix",
    "SamplerSettings",
    "Source",
    "codes",
    "collate",
    "file_hash",
    "num_samples",
    "stretches",
    "sync_directory",
]
