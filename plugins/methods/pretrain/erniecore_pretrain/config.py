"""The settings of pre-training."""

from __future__ import annotations

from erniecore.api import Field
from erniecore.api.method import MethodConfig


class PretrainConfig(MethodConfig):
    """Pre-training on documents, from text or from indexed token files."""

    document_mask: bool = Field(
        True,
        description="Documents that share a row never see each other, and positions begin anew with each. `false`: a row is "
        "one causal text, in which the first token of a document is learned from the end of the one before.",
    )
    mtp_weight: float = Field(
        0.1, ge=0, description="Weight of the multi-token-prediction loss, for models that predict further tokens."
    )
    accuracy: bool = Field(
        False, description="Also report the share of tokens that are the most likely one; costs time."
    )
