"""What errors, notes and help tell people to run can be run: commands exist, options too, settings have these keys, and
distributions and extras these names.
"""

import ast
import re
import shlex
from functools import lru_cache
from pathlib import Path

import pytest
import tomllib
from erniecore_catalog.known import synonyms
from packaging.requirements import Requirement

from erniecore import registry
from erniecore.cli.app import build_cli
from erniecore.cli.usage import CLICK_ERROR
from erniecore.config.core import CORE_SECTIONS
from erniecore.errors import PluginNotFound
from erniecore.kinds import KINDS, MANY, RUN_KINDS

ROOT = Path(__file__).parents[2]
SOURCES = [
    *sorted((ROOT / "erniecore").rglob("*.py")),
    *sorted(path for path in ROOT.glob("plugins/*/*/erniecore_*/**/*.py") if "/mutants/" not in str(path)),
    *sorted((ROOT / "third_party_kernels").glob("*/*.py")),
]
#: stands for a value that is only known when the message is made
VALUE = "VALUE"
_COMMAND = re.compile(r"`ernie ([^`]+)`|(?:^|: |with |or )ernie ((?:[a-z]+ ?)+ [^`;,]*)")


def texts(nodes):
    """(line, keyword or empty, text) of every string in the nodes of a module; what is filled in later reads ``VALUE``."""
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    keywords = {
        id(inner): keyword.arg for call in calls for keyword in call.keywords for inner in ast.walk(keyword.value)
    }
    joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in joined for part in ast.walk(node)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(v.value) if isinstance(v, ast.Constant) else VALUE for v in node.values)
            yield node.lineno, keywords.get(id(node), ""), text
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.lineno, keywords.get(id(node), ""), node.value


def installs(nodes):
    """(line, literal names, the literal ``of`` or empty) of every call of ``install_command`` in the nodes of a module."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "install_command":
            names = [word.value for word in node.args if isinstance(word, ast.Constant)]
            of = [k.value.value for k in node.keywords if k.arg == "of" and isinstance(k.value, ast.Constant)]
            yield node.lineno, names, "".join(of)


@lru_cache(maxsize=1)
def read():
    """What ``texts`` and ``installs`` find in all sources, with the place in front; each file is walked once."""
    all_texts, all_installs = [], []
    for path in SOURCES:
        place, nodes = path.relative_to(ROOT), list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        all_texts += [(f"{place}:{line}", keyword, text) for line, keyword, text in texts(nodes)]
        all_installs += [(f"{place}:{line}", names, of) for line, names, of in installs(nodes)]
    return all_texts, all_installs


def commands():
    """(place, whether it is a remedy, arguments after ``ernie``) of every command that a text names."""
    for place, keyword, text in read()[0]:
        for match in _COMMAND.finditer(text):
            yield place, keyword in ("fix", "next"), (match[1] or match[2]).strip()


def found(line):
    """The click command that a line means, and the arguments behind its name."""
    words = [word.strip("[]….") for word in shlex.split(line.replace("…", " ")) if word.strip("[]….")]
    command, name = build_cli(), "ernie"
    context = command.make_context(name, [], resilient_parsing=True)
    while words and hasattr(command, "list_commands") and re.fullmatch("[a-z][a-z-]*", words[0]):
        child = command.get_command(context, words[0])
        if child is None:
            raise ValueError(f"no command `{context.command_path} {words[0]}`")
        name, *words = words
        command, context = child, type(context)(child, info_name=name, parent=context)
    return command, words


def test_commands_in_texts_exist_with_their_options():
    named = list(commands())
    assert len(named) > 60
    wrong = []
    for place, _, line in named:
        try:
            command, words = found(line)
        except ValueError as error:
            wrong.append(f"{place}: `ernie {line}`: {error}")
            continue
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        known |= {"--help", "-h", "--debug"}
        wrong += [
            f"{place}: `ernie {line}`: no option {word}"
            for word in words
            if word.startswith("--") and word.partition("=")[0] not in known
        ]
    assert not wrong, "\n".join(wrong)


def test_remedies_are_complete_commands():
    """A mere mention, such as `ernie export`, is none."""
    named = [(place, line) for place, remedy, line in commands() if remedy and re.search("[A-Z-]", line)]
    assert len(named) > 20
    wrong = []
    for place, line in named:
        try:
            command, words = found(line)
            if "--help" not in words:
                command.make_context("x", [word.replace(VALUE, "1") for word in words])
        except (ValueError, CLICK_ERROR) as error:
            wrong.append(f"{place}: `ernie {line}`: {error}")
    assert not wrong, "\n".join(wrong)


def test_what_errors_tell_to_install_exists():
    """Literal names are distributions of ours, or packages that the metadata of the named one ask for."""
    projects = [tomllib.loads(path.read_text())["project"] for path in (*ROOT.glob("plugins/*/*/pyproject.toml"),
                ROOT / "pyproject.toml", ROOT / "third_party_kernels" / "pyproject.toml")]  # fmt: skip
    needs = {
        project["name"]: {
            Requirement(text).name
            for texts in (project.get("dependencies", []), *project.get("optional-dependencies", {}).values())
            for text in texts
        }
        for project in projects
    }
    asked = [(place, name, of) for place, names, of in read()[1] for name in names]
    assert len(asked) > 5
    wrong = [f"{place}: {name} {of}" for place, name, of in asked if name not in (needs.get(of, ()) if of else needs)]
    assert not wrong, "\n".join(wrong)


@lru_cache(maxsize=1)
def setting_keys():
    """Every key that some plugin or the core has."""
    keys = {f"{section}.{key}" for section, cls in CORE_SECTIONS.items() for key in cls.model_fields}
    for kind in RUN_KINDS:
        for plugin in registry.loadable(kind):
            keys |= {f"{kind}.name", *(f"{kind}.{key}" for key in plugin.Config.model_fields)}
    return frozenset(keys)


def test_remedies_name_settings_that_exist():
    sections = "|".join((*CORE_SECTIONS, *RUN_KINDS))
    named = re.compile(rf"(?<![\w./-])(?:{sections})\.[a-z]\w*(?![\w./-])")
    files = {"model.safetensors", "model.pdparams", "optimizer.safetensors"}
    wrong = [
        f"{place}: {key}"
        for place, keyword, text in read()[0]
        if keyword in ("fix", "next", "expected")
        for key in named.findall(text)
        if key not in setting_keys() | files
    ]
    assert not wrong, "\n".join(wrong)


def test_names_of_other_toolkits_mean_settings_that_exist():
    table = tomllib.loads((ROOT / "plugins/libraries/catalog/erniecore_catalog/synonyms.toml").read_text())
    names = [name for keys in table.values() for listed in keys.values() for name in listed]
    assert len(names) == len(set(names)), "a name stands for one setting"
    assert set(synonyms().values()) - setting_keys() == set()
    assert not {name for name in names if f"{synonyms()[name].partition('.')[0]}.{name}" in setting_keys()}
    assert all(name == name.lower() and "-" not in name for name in names)
    assert {"lr", "bs", "per_device_train_batch_size", "gradient_accumulation_steps"} <= set(names)


def test_names_of_other_toolkits_mean_plugins_that_exist():
    table = tomllib.loads((ROOT / "plugins/libraries/catalog/erniecore_catalog/plugin_names.toml").read_text())
    for kind, plugins in table.items():
        installed = {entry.name for entry in registry.entries(kind)}
        names = [name for listed in plugins.values() for name in listed]
        assert len(names) == len(set(names)), "a name stands for one plugin"
        assert set(plugins) <= installed
        assert not set(names) & installed, "a plugin of that name is chosen"
        assert all(re.fullmatch("[a-z0-9+-]+", name) for name in names)


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        ("method", "pretrain", "pt"),
        ("model", "ERNIE_4.5", "ernie45"),
        ("device", "gpu", "cuda"),
        ("quantizer", "int8", "wint8"),
    ],
)
def test_names_of_other_toolkits_lead_to_ours(kind, name, meant):
    with pytest.raises(PluginNotFound) as caught:
        registry.find(kind, name)
    assert f"did you mean {meant}?" in str(caught.value)


def test_only_install_command_says_how_to_install_what_is_ours():
    """A plain `pip install` of ours fails in a clone and beside wheels, where no index has it."""
    ours = re.compile(r"(?:pip|uv) install [^`;]*(?:erniecore|ernie-third-party|VALUE)")
    written = [(place, text) for place, _, text in read()[0] if ours.search(text) and "erniecore_catalog" not in place]
    # the last line of `ernie new plugin` installs the folder that it has just written
    assert [place.split(":")[0] for place, _ in written] == [
        "plugins/commands/conformance/erniecore_conformance/new.py"
    ]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in MANY.values()])
def test_each_kind_of_this_repository_is_known_by_its_distributions(kind):
    from erniecore_catalog.known import home_of

    for entry in registry.entries(kind):
        if entry.distribution.startswith("erniecore-"):
            assert home_of(kind, entry.name) == entry.distribution
