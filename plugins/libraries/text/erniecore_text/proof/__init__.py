"""Proof that what was trained is what is served: the prompts of rows, token by token, as training has them, as a server gives
them to its model, and as transformers renders the directory. For ``ernie export`` and servers. Imports no paddle.

``rows.py`` says which rows, ``trained.py`` what training has, ``others.py`` what transformers has, ``compare.py`` decides.
"""

from erniecore_text.proof.compare import Mismatch, Report, compare
from erniecore_text.proof.others import Rendered, Rendering, rendering_of
from erniecore_text.proof.proving import Policy, Proof, Renderer
from erniecore_text.proof.rows import ProofRow, shipped_rows
from erniecore_text.proof.trained import TrainedPrompt, trained_prompts

__all__ = [
    "Mismatch",
    "Policy",
    "Proof",
    "ProofRow",
    "Rendered",
    "Renderer",
    "Rendering",
    "Report",
    "TrainedPrompt",
    "compare",
    "rendering_of",
    "shipped_rows",
    "trained_prompts",
]
