"""The settings keys of the core and of every plugin of this repository, with type and default, are frozen in a file: what a user
has written into YAML goes on to work, or is renamed in ``erniecore_catalog.retired``.

After a deliberate change: ``python tests/architecture/test_settings_surface.py`` rewrites the file. It refuses to forget a key
that no retired name stands for.
"""

import sys
from pathlib import Path

from erniecore_catalog import retired

from erniecore import registry
from erniecore.config.core import CORE_SECTIONS
from erniecore.config.describe import section_keys
from erniecore.kinds import KINDS, MANY

FROZEN = Path(__file__).with_name("settings_surface.txt")
#: kinds whose plugin objects have no settings of their own
WITHOUT = {"command"}


def surface():
    """``key (owner)`` -> type and default, as a line of the file shows them."""
    found = [("erniecore", section, cls) for section, cls in CORE_SECTIONS.items()]
    sections = {kind: section for section, kind in MANY.items()}
    for kind in (name for name in KINDS if name not in WITHOUT):
        for entry in registry.entries(kind):
            if entry.distribution.startswith(("erniecore", "ernie-")):
                section = f"{sections[kind]}.{entry.name}" if kind in sections else kind
                found.append((f"{kind} {entry.name}", section, registry.load(kind, entry.name).Config))
    keys = [(owner, key) for owner, section, cls in found for key in section_keys(owner, section, cls)]
    return {f"{key.key} ({owner})": f"{key.type} = {key.default}" for owner, key in keys}


def text_of(keys):
    return "".join(f"{name}: {facts}\n" for name, facts in keys.items())


def frozen():
    return dict(line.split(": ", 1) for line in FROZEN.read_text(encoding="utf-8").splitlines())


def gone(before, now, known=None):
    """Keys of ``before`` that nobody can write any more: neither there, nor the retired name of one that is."""
    known = known or retired.current_key
    written = {name.partition(" (")[0] for name in now} | {f"{kind}.name" for kind in KINDS}
    names = {name: name.partition(" (")[0] for name in before if name not in now}
    return sorted(name for name, key in names.items() if known(key) == key or known(key) not in written)


def changed(before, now):
    """Keys whose type or default is another one."""
    return sorted(f"{name}: {before[name]} -> {now[name]}" for name in before.keys() & now if before[name] != now[name])


def test_no_key_is_gone():
    assert not gone(frozen(), surface()), "add the old name to erniecore_catalog.retired.KEYS"


def test_types_defaults_and_new_keys_are_as_frozen():
    before, now = frozen(), surface()
    assert not changed(before, now), "if meant, run this file and add a CHANGELOG line"
    assert not now.keys() - before.keys(), "new settings: run this file"
    assert text_of(now) == FROZEN.read_text(encoding="utf-8"), "run this file"


def test_what_the_comparison_finds():
    before = {"train.old (erniecore)": "integer = 1", "method.beta (method dpo)": "number = 0.1"}
    now = {"train.new (erniecore)": "integer = 1", "method.beta (method dpo)": "number = 0.2"}
    assert gone(before, now) == ["train.old (erniecore)"]
    assert gone(before, now, {"train.old": "train.new", "method.beta": "method.beta"}.get) == []
    assert gone(before, now, {"train.old": "train.nwe"}.get) == ["train.old (erniecore)"]
    assert gone({"method.beta (method ipo)": "number = 0.1"}, now) == ["method.beta (method ipo)"]
    assert changed(before, now) == ["method.beta (method dpo): number = 0.1 -> number = 0.2"]


def test_plugins_of_every_kind_with_settings_are_there():
    owners = {name.partition(" (")[2].partition(" ")[0].rstrip(")") for name in frozen()}
    assert {
        "erniecore",
        "model",
        "method",
        "adapter",
        "quantizer",
        "optimizer",
        "parallel",
        "device",
        "callback",
        "server",
    } < owners


if __name__ == "__main__":
    lost = gone(frozen(), surface()) if FROZEN.is_file() else []
    if lost:
        sys.exit(f"these keys would be gone: {', '.join(lost)}; add their old names to erniecore_catalog.retired.KEYS")
    FROZEN.write_text(text_of(surface()), encoding="utf-8")
