"""Which distributions of erniecore there are, what each brings, and the command that installs one here."""

from __future__ import annotations


def install_command(*requirements: str, of: str = "", option: str = "") -> str:
    """One command for the shell that brings distributions into this environment, as erniecore itself came: ``make install``
    in the ``.venv`` of a clone, ``pip install -e FOLDER`` in another environment of a clone, ``--find-links`` beside wheels.

    Args:
        requirements: names of distributions, with a range of versions if need be.
        of: an installed distribution whose metadata say the ranges, e.g. ``erniecore`` for ``paddlepaddle``.
        option: of pip, where they are installed already: ``--upgrade`` or ``--force-reinstall``.
    """
    from erniecore_catalog import installing  # only when something is missing

    wanted = [installing.requirement(of, name) for name in requirements] if of else requirements
    return installing.command(wanted, option)
