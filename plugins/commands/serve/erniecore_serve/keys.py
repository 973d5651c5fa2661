"""Who may ask a server: its API key, from a file or the environment, and addresses that need one. For server plugins."""

from __future__ import annotations

import os
from pathlib import Path

from erniecore_system.addresses import is_loopback

from erniecore.api import UsageError

#: The environment variable with the API key.
VARIABLE = "ERNIE_API_KEY"
_SHORTEST_KEY = 16


def api_key(file: str) -> str:
    """The key from a file, or from the environment; ``""``: none.

    Raises:
        UsageError: a file that cannot be read, a key that is short or no printable ASCII.
    """
    where = file or f"${VARIABLE}"
    try:
        key = Path(file).read_text(encoding="utf-8").strip() if file else os.environ.get(VARIABLE, "")
    except OSError as error:
        raise UsageError("cannot read the API key", where=file, found=error.strerror or "") from None
    except UnicodeDecodeError:
        raise UsageError("cannot read the API key", where=file, found="no text") from None
    if not key and not file:
        return ""
    if len(key) < _SHORTEST_KEY or not (key.isascii() and key.isprintable()) or " " in key:
        raise UsageError(
            "this is no API key", where=where, found=f"{len(key)} characters",
            expected=f"at least {_SHORTEST_KEY} printable ASCII characters without spaces", fix="openssl rand -hex 24",
        )  # fmt: skip
    return key


def check_address(host: str, key: str) -> None:
    """Raise ``UsageError`` for an address that others can reach, without a key."""
    if not key and not is_loopback(host):
        raise UsageError(
            "anybody who reaches this address could use the model", where="host", found=host,
            expected="a loopback address, or an API key", fix=f"set ${VARIABLE}, or key_file=FILE",
        )  # fmt: skip
