"""The base class of every section of the settings.

A section is frozen, refuses unknown keys and describes every field: the generated reference, ``ernie
config explain`` and the error messages are made from these descriptions.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic import Field as Field


class Section(BaseModel):
    """One section of the settings; plugins derive their ``Config`` from it."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=False)
