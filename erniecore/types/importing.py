"""What an importer makes of a settings file of another toolkit. Plain data: the settings turn it into a layer of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

NoteKind = Literal["effective", "default", "differs", "hint"]


@dataclass(frozen=True, slots=True)
class ImportNote:
    """Something that the user should know about an imported file.

    Attributes:
        kind: ``effective``: the value that the toolkit really uses; ``default``: a default of it, written out;
            ``differs``: what cannot be as it was; ``hint``: what to use instead.
        keys: of the file, that the note is about. text: one sentence.
    """

    kind: NoteKind
    keys: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{', '.join(self.keys)}: {self.text}" if self.keys else self.text


@dataclass(frozen=True, slots=True)
class ImportedSetting:
    """One of our settings, made of a foreign file.

    Attributes:
        value: plain, as YAML has it. keys: of the file, that it comes from.
        default_of: where the file has none of them: the foreign key whose default this is; empty: it was chosen.
    """

    value: Any
    keys: tuple[str, ...]
    default_of: str = ""


@dataclass(frozen=True)
class Imported:
    """What became of a foreign file: each of its keys is in one of ``mapped``, ``dropped``, ``unknown`` and ``problems``.

    Attributes:
        toolkit: whose file it is, for messages.
        settings: ``section.key`` -> value, in the order in which they are written.
        mapped: foreign key -> our keys, separated by commas. dropped: foreign key -> reason.
        unknown: keys that the toolkit does not have. suggestions: for some of them, the nearest one that it has.
        unknown_reason: what is wrong with a key of ``unknown``, for errors.
        notes: what the user should know. problems: foreign key -> what is wrong with its value.
        command: for a file that trains nothing, our command line for it. purpose: what such a file is for.
        advice: what to do where a plugin that the file asks for is not installed, by kind; ``model.path``: where the model
            directory does not exist.
    """

    toolkit: str
    settings: Mapping[str, ImportedSetting]
    mapped: Mapping[str, str]
    dropped: Mapping[str, str]
    unknown: tuple[str, ...] = ()
    suggestions: Mapping[str, str] = field(default_factory=dict)
    unknown_reason: str = ""
    notes: tuple[ImportNote, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    purpose: str = ""
    advice: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """``mapped``, ``dropped``, ``unknown``, and beside them ``suggestions``, ``notes``, ``settings``."""
        return {
            "toolkit": self.toolkit,
            "mapped": dict(self.mapped),
            "dropped": dict(self.dropped),
            "unknown": list(self.unknown),
            "suggestions": dict(self.suggestions),
            "notes": [{"kind": n.kind, "keys": list(n.keys), "text": n.text} for n in self.notes],
            "settings": {key: setting.value for key, setting in self.settings.items()},
        }


@dataclass(frozen=True, slots=True)
class ImportTarget:
    """Where imported settings will run.

    Attributes:
        device: the device plugin. dtypes: those that it has; empty: nobody knows.
    """

    device: str = "cpu"
    dtypes: frozenset[str] = frozenset({"float32"})


class ForeignKey(Protocol):
    """A key of another toolkit: its type and default there, the settings that it becomes (empty: none), and a note that says
    why none, or how its value is converted."""

    @property
    def type(self) -> str: ...
    @property
    def default(self) -> Any: ...
    @property
    def new(self) -> str: ...
    @property
    def note(self) -> str: ...


class ForeignKeys(Protocol):
    """Every key of a toolkit by name. ``telling``: keys one of which a file must have to be this toolkit's."""

    @property
    def toolkit(self) -> str: ...
    @property
    def keys(self) -> Mapping[str, ForeignKey]: ...
    @property
    def telling(self) -> frozenset[str]: ...
