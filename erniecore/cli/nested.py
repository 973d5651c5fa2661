"""``ernie data`` and ``ernie model``: groups whose commands come from plugins (entry points ``data.NAME``, ``model.NAME``)."""

from __future__ import annotations

from erniecore.cli.group import new_group

data = new_group(
    "Check, show and count data files; the token cache; build token files; convert. All of it is in erniecore-data, "
    "erniecore-columnar and erniecore-token-files."
)
model = new_group("Create and check model directories.")


@data.callback()
@model.callback()
def _group() -> None:
    """Makes typer take an app without commands of its own as a group."""
