"""The one table of kinds: flags, sections and groups of the command line and of the settings are those of the table."""

import re

from erniecore.cli.app import build_cli
from erniecore.config.core import CORE_SECTIONS
from erniecore.config.settings import RunSettings
from erniecore.config.sources import from_flags
from erniecore.config.tree import plain
from erniecore.kinds import FLAG_KINDS, KINDS, MANY, RUN_KINDS


def test_a_run_takes_the_flags_of_the_table():
    context = build_cli().make_context("ernie", ["run"], resilient_parsing=True)
    help_text = context.command.get_command(context, "run").get_help(context)
    listed = set(re.findall(r"^  (--[a-z-]+) NAME", help_text, re.MULTILINE))
    assert {kind.flag for kind in FLAG_KINDS} <= listed
    for kind in FLAG_KINDS:
        assert kind.help in " ".join(help_text.split())


def test_a_flag_sets_what_the_table_says():
    for kind in FLAG_KINDS:
        value = ["x"] if kind.many and not kind.sets else "x"
        tree = plain(from_flags({kind.name: value}))
        for step in (kind.sets or kind.section).split("."):
            tree = tree[step]
        assert tree in ("x", {"name": "x"}, {"x": {}})


def test_sections_of_a_run_are_core_sections_and_those_of_the_table():
    assert set(RunSettings.model_fields) - {"plugins"} == {*CORE_SECTIONS, *RUN_KINDS, *MANY}


def test_groups_and_flags_are_distinct():
    for values in ([k.group for k in KINDS.values()], [k.flag for k in KINDS.values() if k.flag]):
        assert len(values) == len(set(values))
    for kind in KINDS.values():
        assert kind.group.startswith("erniecore.")
        assert not (kind.section and kind.flag) or kind.help
