"""What goes beside the wheels of a release: checksums, a bill of materials (CycloneDX 1.6) and the notes of the version.

``make release`` calls it twice. ``--check``, before anything is built: the checkout is as its last commit says, and CHANGELOG.md
has the version. With the folder of the wheels: writes ``sbom.cdx.json``, ``NOTES.md`` and ``SHA256SUMS``, which
``sha256sum --check`` reads. Times come from ``SOURCE_DATE_EPOCH``, so that the same commit gives the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import uuid
import zipfile
from datetime import datetime, timezone
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import tested_versions
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SBOM, NOTES, SUMS = "sbom.cdx.json", "NOTES.md", "SHA256SUMS"


def notes(version: str, changelog: str) -> str:
    """The section of a version, without its heading.

    Raises:
        SystemExit: there is none, or it is empty.
    """
    found = re.search(rf"^## {re.escape(version)}(?: [^\n]*)?\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        headings = ", ".join(re.findall(r"^## (.*)$", changelog, re.MULTILINE)) or "no headings"
        raise SystemExit(
            f"CHANGELOG.md: no notes for {version}, there are: {headings}; write them below '## {version}'"
        )
    return found[1].strip() + "\n"


def check(root: Path = ROOT) -> None:
    """Nothing may be in the wheels that is not in the commit whose time they carry.

    Raises:
        SystemExit: there are changes that are not committed, or the version has no notes.
    """
    changed = _output("git", "-C", str(root), "status", "--porcelain")
    if changed:
        raise SystemExit(f"the checkout is not as its last commit; commit or remove these first:\n{changed}")
    version = re.search(r'^version = "(.*)"$', (root / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert version is not None
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    notes(version[1], changelog)
    if re.search(rf"^## {re.escape(version[1])} \(unreleased\)$", changelog, re.MULTILINE):
        print(f"note: CHANGELOG.md calls {version[1]} unreleased; put the date there before you tag", file=sys.stderr)


def metadata(wheel: Path) -> Message:
    """The METADATA of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def bill(wheels: list[Path], epoch: int) -> dict[str, Any]:
    """The wheels with their checksums, the libraries of others in the tested versions, and what each wheel always needs."""
    facts = {canonicalize_name(found["Name"]): (wheel, found) for wheel in wheels for found in [metadata(wheel)]}
    lines = tested_versions.FILE.read_text(encoding="utf-8").splitlines()
    pins = {pin.name: str(pin.specifier).removeprefix("==") for pin in map(Requirement, filter(_is_pin, lines))}
    needs = {name: _needs(found) for name, (_, found) in facts.items()}
    others = sorted({n for names in needs.values() for n in names} | pins.keys() - facts.keys())
    ref = {name: f"pkg:pypi/{name}@{found['Version']}" for name, (_, found) in facts.items()}
    ref |= {name: f"pkg:pypi/{name}" + (f"@{pins[name]}" if name in pins else "") for name in others if name not in ref}
    ours = [
        _component(name, ref[name], found["Version"]) | _content(wheel)
        for name, (wheel, found) in sorted(facts.items())
    ]
    theirs = [_component(name, ref[name], pins.get(name)) for name in others if name not in facts]
    seed = "".join(c["hashes"][0]["content"] for c in ours)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, seed)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, timezone.utc).isoformat(),
            "component": {"type": "framework", "name": "erniecore", "version": facts["erniecore"][1]["Version"]},
        },
        "components": ours + theirs,
        "dependencies": [{"ref": ref[n], "dependsOn": sorted(ref[m] for m in needs[n])} for n in sorted(facts)],
    }


def write(folder: Path, epoch: int, root: Path = ROOT) -> list[Path]:
    """The three files beside the wheels in a folder; they are returned.

    Raises:
        SystemExit: there is no wheel of the core, a wheel has another version, or the version has no notes.
    """
    wheels = sorted(folder.glob("*.whl"))
    versions = {metadata(wheel)["Version"] for wheel in wheels}
    if len(versions) != 1 or not any(wheel.name.startswith("erniecore-") for wheel in wheels):
        raise SystemExit(
            f"{folder}: {len(wheels)} wheels of versions {sorted(versions)}; a release has the core and one version"
        )
    text = notes(versions.pop(), (root / "CHANGELOG.md").read_text(encoding="utf-8"))
    (folder / NOTES).write_text(text, encoding="utf-8")
    (folder / SBOM).write_text(json.dumps(bill(wheels, epoch), indent=1) + "\n", encoding="utf-8")
    summed = sorted([*wheels, folder / NOTES, folder / SBOM])
    (folder / SUMS).write_text("".join(f"{_sha256(path)}  {path.name}\n" for path in summed), encoding="utf-8")
    return [folder / SBOM, folder / NOTES, folder / SUMS]


def validate(path: Path) -> None:
    """Compare a bill of materials with the schema; the library comes with `make release`.

    Raises:
        SystemExit: it breaks the schema.
    """
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(path.read_text(encoding="utf-8"))
    if wrong is not None:
        raise SystemExit(f"{path}: not CycloneDX 1.6: {wrong}")


def _is_pin(line: str) -> bool:
    return bool(line) and not line.startswith("#")


def _needs(found: Message) -> set[str]:
    """What a distribution needs without any extra, on some Python or platform."""
    asked = [Requirement(line) for line in found.get_all("Requires-Dist", [])]
    return {canonicalize_name(r.name) for r in asked if r.marker is None or "extra ==" not in str(r.marker)}


def _component(name: str, ref: str, version: str | None) -> dict[str, Any]:
    told = {} if version is None else {"version": version}
    return {"type": "library", "bom-ref": ref, "name": name, **told, "purl": ref}


def _content(wheel: Path) -> dict[str, Any]:
    return {
        "hashes": [{"alg": "SHA-256", "content": _sha256(wheel)}],
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _output(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="where the wheels are")
    parser.add_argument("--check", action="store_true", help="whether a release may be built now")
    given = parser.parse_args()
    if given.check or given.folder is None:
        return check()
    written = write(given.folder, int(os.environ["SOURCE_DATE_EPOCH"]))
    validate(given.folder / SBOM)
    print("\n".join(map(str, written)))


if __name__ == "__main__":
    main()
