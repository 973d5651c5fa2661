"""Contracts instead of guesses: what the syntax trees of the engine and of the plugins must not have.

Each rule takes the nodes of a tree and yields (line, what was found). What a plugin hands over has a base class or a protocol,
so nobody asks an object whether it has a member; a capability or a declared property decides, never a name.
"""

import ast
import re
from pathlib import Path

import pytest

from erniecore.sections import BASES

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for top in ("erniecore/engine", "plugins")
    for path in (ROOT / top).rglob("*.py")
    # the conformance kit judges objects that may break every contract, and its mutants do so on purpose
    if not {"tests", ".venv", "templates", "conformance"} & set(path.relative_to(ROOT).parts)
    and path.name != "conftest.py"
)
#: members of other libraries' objects that differ by platform
FOREIGN = {"TCP_USER_TIMEOUT", "sched_getaffinity", "sched_setaffinity"}
#: kinds of plugin whose section of the settings others must not read by key
SECTIONS = {"device", "parallel", "model", "adapter", "quantizer", "method"}
#: what the base classes of the sections declare
DECLARED = {name for base in BASES.values() for name in (*vars(base), *base.model_fields) if not name.startswith("_")}


def _literal(node):
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def guessed_members(nodes):
    """``getattr`` or ``hasattr`` with the name of a member."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            name = _literal(node.args[1]) if len(node.args) > 1 else None
            if name is not None:
                yield node.lineno, name


def compared_names(nodes):
    """``device.name == "cpu"`` and the like."""
    for node in nodes:
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        owners = {
            side.value.id if isinstance(side.value, ast.Name) else side.value.attr
            for side in sides
            if isinstance(side, ast.Attribute)
            and side.attr == "name"
            and isinstance(side.value, ast.Name | ast.Attribute)
        }
        if owners & {"device", "plugin", "method", "quantizer", "adapter", "model"} and any(map(_literal, sides)):
            yield node.lineno, ast.unparse(node)


def keys_of_sections(nodes):
    """``settings.parallel.context``: a key that only one plugin's section has, read by somebody else."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            section, owner = node.value, node.value.value
            named = isinstance(owner, ast.Name) and owner.id in ("settings", "config", "loaded")
            inner = isinstance(owner, ast.Attribute) and owner.attr == "settings"
            if section.attr in SECTIONS and (named or inner) and node.attr not in DECLARED:
                yield node.lineno, ast.unparse(node)


def changed_classes(nodes):
    """An assignment to ``__class__``."""
    for node in nodes:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Attribute) and target.attr == "__class__":
                yield node.lineno, ast.unparse(target)


def lambdas_on_objects(nodes):
    """A function put on somebody else's object: ``model.balancer.all_reduce = lambda ...``, ``setattr(model, n, partial(f))``."""
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and not (
                    isinstance(target.value, ast.Name) and target.value.id == "self"
                ):
                    yield node.lineno, ast.unparse(target)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
            value = node.args[2] if len(node.args) > 2 else None
            made = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "partial"
            if isinstance(value, ast.Lambda) or made:
                yield node.lineno, ast.unparse(node)


#: names by which tensors are known in this code: letters of axes behind an underscore, or what they are
TENSOR = re.compile(
    r"^(weight|bias|parameter|param|tensor|gradient|hidden|logits|labels|ids|indices|own)$|^\w+_[A-Z]\w*$"
)
#: attributes that Paddle's tensors have
OF_TENSORS = {"stop_gradient", "grad", "name", "persistable", "optimize_attr", "regularizer", "need_clip", "trainable"}


def attributes_on_tensors(nodes):
    """``weight.shard = ...`` or ``setattr(weight, ...)``."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and TENSOR.match(target.value.id)
                    and target.attr not in OF_TENSORS
                ):
                    yield node.lineno, ast.unparse(target)
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr"
        if called and isinstance(node.args[0], ast.Name) and TENSOR.match(node.args[0].id):
            yield node.lineno, ast.unparse(node)


RULES = (
    guessed_members,
    compared_names,
    keys_of_sections,
    changed_classes,
    lambdas_on_objects,
    attributes_on_tensors,
)


def nodes_of(source):
    return list(ast.walk(ast.parse(source)))


@pytest.fixture(scope="module")
def findings():
    """Rule -> what breaks it; each file is parsed and walked once for all rules."""
    found = {rule: [] for rule in RULES}
    for path in SOURCES:
        place, nodes = str(path.relative_to(ROOT)), nodes_of(path.read_text(encoding="utf-8"))
        for rule in RULES:
            for line, what in rule(nodes):
                own = rule is keys_of_sections and _own_section(place, what)
                if what not in FOREIGN and not own:
                    found[rule].append(f"{place}:{line}: {what}")
    return found


def _own_section(place, what):
    """Whether a plugin reads its own section, as ``ernie_check_settings`` does."""
    section = what.rsplit(".", 2)[1]
    kinds = {"models": "model", "methods": "method", "adapters": "adapter", "quantizers": "quantizer",
             "devices": "device", "parallel": "parallel"}  # fmt: skip
    parts = place.split("/")
    return parts[0] == "plugins" and kinds.get(parts[1]) == section


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_contracts_hold(rule, findings):
    assert not findings[rule], f"{rule.__doc__}\n" + "\n".join(findings[rule])


SAMPLES = {
    guessed_members: ("free = getattr(config, 'reference_free', False)", "hasattr(model, 'mtp_forward')"),
    compared_names: ("if run.device.name == 'cpu': pass", "if plugin.name in ('auto',) or plugin.name != 'x': pass"),
    keys_of_sections: ("x = settings.parallel.context > 1", "y = run.settings.method.beta"),
    changed_classes: ("layer.__class__ = type('X', (), {})", "layer.__class__: type = X"),
    lambdas_on_objects: ("model.balancer.all_reduce = lambda x: x", "setattr(model, name, partial(f, model))"),
    attributes_on_tensors: ("weight.shard = shard", "x_BSH.rows = 1", "setattr(parameter, 'shard', 1)"),
}


@pytest.mark.parametrize(
    ("rule", "sample"),
    [(rule, sample) for rule, samples in SAMPLES.items() for sample in samples],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_each_rule_catches(rule, sample):
    assert list(rule(nodes_of(sample)))


@pytest.mark.parametrize(
    "sample",
    [
        "value = getattr(layer, name)",
        "if device.is_host and kind.name == other: pass",
        "path = settings.model.path",
        "self.clock = lambda: 0",
        "weight.stop_gradient = True",
    ],
)
def test_what_is_allowed_passes(sample):
    assert not [found for rule in RULES for found in rule(nodes_of(sample))]


def test_every_rule_has_samples():
    assert set(SAMPLES) == set(RULES)
