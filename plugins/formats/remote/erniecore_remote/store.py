"""What was fetched, in the user's cache: a directory per URL, in it one per version of its files.

$XDG_CACHE_HOME/erniecore/remote/URL/VERSION/FILE…       all files of the version
$XDG_CACHE_HOME/erniecore/remote/URL/VERSION.part/…      not all, or not whole: the next attempt goes on
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erniecore_system.files import cache_home

#: what servers say of a file that changes with its content
_CHANGES = ("size", "ETag", "Last-Modified", "Content-MD5", "Digest", "LastModified", "VersionId", "created", "mtime")


def home_of(url: str) -> Path:
    """The directory of a URL; may not exist yet."""
    return cache_home() / "erniecore" / "remote" / hashlib.sha256(url.encode()).hexdigest()[:24]


def version_of(info: Mapping[str, Any]) -> str:
    """What tells the file from a later one under its name; empty: the server says nothing but perhaps its size."""
    said = {key: str(info[key]) for key in _CHANGES if info.get(key) is not None}
    return json.dumps(said) if said.keys() - {"size"} else ""


def directory_name(versions: Mapping[str, str]) -> str:
    """Of the directory for these files: relative path -> version."""
    return hashlib.sha256(json.dumps(versions, sort_keys=True).encode()).hexdigest()[:24]
