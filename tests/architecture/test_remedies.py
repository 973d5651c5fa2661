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

from erniecore import registry
from erniecore.cli.app import build_cli
from erniecore.cli.usage import CLICK_ERROR
from erniecore.config.core import CORE_SECTIONS
from erniecore.kinds import KINDS, MANY, RUN_KINDS
from erniecore.known import synonyms

ROOT = Path(__file__).parents[2]
SOURCES = [
    *sorted((ROOT / "erniecore").rglob("*.py")),
    *sorted(path for path in ROOT.glob("plugins/*/*/erniecore_*/**/*.py") if "/mutants/" not in str(path)),
    *sorted((ROOT / "third_party_kernels").glob("*/*.py")),
]
#: stands for a value that is only known when the message is made
VALUE = "VALUE"
_COMMAND = re.compile(r"`ernie ([^`]+)`|(?:^|: |with |or )ernie ((?:[a-z]+ ?)+ [^`;,]*)")
_PIP = re.compile(r"pip install (?:--[a-z-]+ )*('[^']+'|[^\s`;,)]+)")


def texts(tree):
    """(line, keyword or empty, text) of every string in a module; what is filled in later reads ``VALUE``."""
    keywords = {
        id(inner): keyword.arg
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        for inner in ast.walk(keyword.value)
    }
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(v.value) if isinstance(v, ast.Constant) else VALUE for v in node.values)
            yield node.lineno, keywords.get(id(node), ""), text
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.lineno, keywords.get(id(node), ""), node.value


@lru_cache(maxsize=1)
def all_texts():
    return [
        (f"{path.relative_to(ROOT)}:{line}", keyword, text)
        for path in SOURCES
        for line, keyword, text in texts(ast.parse(path.read_text(encoding="utf-8")))
    ]


def commands():
    """(place, whether it is a remedy, arguments after ``ernie``) of every command that a text names."""
    for place, keyword, text in all_texts():
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


def test_what_pip_is_told_to_install_exists():
    projects = [tomllib.loads(path.read_text())["project"] for path in ROOT.glob("plugins/*/*/pyproject.toml")]
    core = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = {project["name"] for project in projects} | {"erniecore", "ernie-third-party-kernels"}
    wrong, count = [], 0
    for place, _, text in all_texts():
        for match in _PIP.finditer(text):
            name, _, rest = match[1].strip("'").partition("[")
            if not name.startswith("ernie") or VALUE in match[1]:
                continue
            count += 1
            extras = {extra for extra in rest.rstrip("]").split(",") if extra}
            if name not in ours or (name == "erniecore" and extras - set(core["optional-dependencies"])):
                wrong.append(f"{place}: {match[0]}")
    assert count > 5
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
        for place, keyword, text in all_texts()
        if keyword in ("fix", "next", "expected")
        for key in named.findall(text)
        if key not in setting_keys() | files
    ]
    assert not wrong, "\n".join(wrong)


def test_names_of_other_toolkits_mean_settings_that_exist():
    table = tomllib.loads((ROOT / "erniecore" / "synonyms.toml").read_text())
    names = [name for keys in table.values() for listed in keys.values() for name in listed]
    assert len(names) == len(set(names)), "a name stands for one setting"
    assert set(synonyms().values()) - setting_keys() == set()
    assert not {name for name in names if f"{synonyms()[name].partition('.')[0]}.{name}" in setting_keys()}
    assert all(name == name.lower() and "-" not in name for name in names)
    assert {"lr", "bs", "per_device_train_batch_size", "gradient_accumulation_steps"} <= set(names)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in MANY.values()])
def test_each_kind_of_this_repository_is_known_by_its_distributions(kind):
    from erniecore.known import home_of

    for entry in registry.entries(kind):
        if entry.distribution.startswith("erniecore-"):
            assert home_of(kind, entry.name) == entry.distribution
