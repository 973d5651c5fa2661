"""Building block: creates a model from a plugin's architecture or from another model, and its directory. Light; Paddle is
imported by :func:`open_device` and by the functions called after it.
"""

from erniecore_checkpoint.directories import atomic_directory, check_target

from erniecore.config.recipes import recipes
from erniecore.config.sources import parse_value
from erniecore.config.yaml import parse as parse_yaml
from erniecore.engine.models.bundles import build_bundle, check_vocabulary, model_plugin, open_device, read_tokenizer
from erniecore.engine.models.bundles import described as with_provenance
from erniecore.engine.models.score_head import add_score_head

__all__ = [
    "add_score_head",
    "atomic_directory",
    "build_bundle",
    "check_target",
    "check_vocabulary",
    "model_plugin",
    "open_device",
    "parse_value",
    "parse_yaml",
    "read_tokenizer",
    "recipes",
    "with_provenance",
]
