"""The chat templates of the vision-language models, as published. Text alone is rendered here; tokens of images are
``prompts.py``."""

from __future__ import annotations

from erniecore_ernie45.templating import TEMPLATES as TEXT
from erniecore_ernie45.templating import BuiltIn

#: a directory without a template has the first
TEMPLATES: dict[str, BuiltIn] = {
    "ernie45-vl": BuiltIn("erniecore_ernie45_vl"),
    "ernie45-vl-thinking": BuiltIn("erniecore_ernie45_vl"),
    **TEXT,
}
