"""erniecore: a small core and its plugins for training and deploying the ERNIE 4.5 family on PaddlePaddle.

Importing this package is cheap (no paddle, numpy, pydantic or yaml). The entry points for Python users are resolved on
first use; everything that a plugin needs is in ``erniecore.api``.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from erniecore.engine.entry import run as run
    from erniecore.engine.loading import load_adapter as load_adapter
    from erniecore.engine.loading import load_model as load_model
    from erniecore.engine.loading import load_tokenizer as load_tokenizer
    from erniecore.engine.loading import open_model as open_model

# paddle warns of it at its first import, whoever imports it; nobody here builds extensions
warnings.filterwarnings("ignore", message="No ccache found")

__version__ = "0.1.0"
__all__ = [
    "Trainer",
    "__version__",
    "export",
    "generate",
    "load_adapter",
    "load_model",
    "load_tokenizer",
    "open_model",
    "run",
]


#: names of this package that another distribution brings, and the modules that have them
FROM_OTHERS = {
    "Trainer": "erniecore_notebook.trainer",
    "export": "erniecore_export.exporting",
    "generate": "erniecore_generation.generate",
}


def __getattr__(name: str) -> Any:
    if name in FROM_OTHERS:
        from erniecore.libraries import library

        return getattr(library(FROM_OTHERS[name], f"erniecore.{name}"), name)
    if name in __all__:
        return getattr(import_module("erniecore.engine.entry" if name == "run" else "erniecore.engine.loading"), name)
    raise AttributeError(f"module 'erniecore' has no attribute {name!r}")
