"""What the sources define, read from their syntax trees: modules, functions, classes, and the types that annotations tell."""

import ast
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Function:
    """A function or method, where it stands, and the class that it belongs to."""

    module: str
    name: str
    node: ast.AST
    file: Path
    owner: "Class | None" = None

    @property
    def qualname(self):
        return f"{self.owner.name}.{self.name}" if self.owner else self.name

    @property
    def parameters(self):
        arguments = self.node.args
        return [a for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs) if a.arg != "self"]


@dataclass
class Class:
    """A class: methods by name, types of attributes by name."""

    module: str
    name: str
    node: ast.ClassDef
    file: Path
    methods: dict = field(default_factory=dict)
    attributes: dict = field(default_factory=dict)


@dataclass
class Module:
    """A file: what is defined in it, and what its imports are called."""

    name: str
    file: Path
    tree: ast.Module
    defined: dict = field(default_factory=dict)
    imports: dict = field(default_factory=dict)
    variables: dict = field(default_factory=dict)


def words_of(annotation):
    """Every name in an annotation, the innermost first: ``Sequence[Batch] | None`` tells of ``Batch``."""
    if annotation is None:
        return []
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    names = [n.id for n in ast.walk(annotation) if isinstance(n, ast.Name)]
    names += [n.attr for n in ast.walk(annotation) if isinstance(n, ast.Attribute)]
    return names[::-1]


class Code:
    """All modules, classes and functions of the sources."""

    def __init__(self, root, sources):
        self.modules, self.classes, self.hooks = {}, {}, {}
        for source in sources:
            for file in sorted((root / source).rglob("*.py")):
                if "tests" not in file.parts and "templates" not in file.parts:
                    self._read(file, root / source if source != "erniecore" else root)
        self.subclasses = {}
        for cls in self.classes.values():
            for base in cls.node.bases:
                for name in words_of(base):
                    self.subclasses.setdefault(name, []).append(cls)
        for protocol in self.subclasses.get("Protocol", []):
            near = [c for c in self.classes.values() if c is not protocol and c.module == protocol.module]
            fitting = [c for c in near if c.methods.keys() >= protocol.methods.keys()]
            self.subclasses.setdefault(protocol.name, []).extend(fitting)

    def _read(self, file, root):
        parts = file.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        module = Module(name, file, ast.parse(file.read_text(encoding="utf-8")))
        self.modules[name] = module
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom):
                source = node.module or ""
                if node.level:
                    source = ".".join([*package.split(".")[: len(package.split(".")) - node.level + 1], source]).strip(
                        "."
                    )
                for alias in node.names:
                    module.imports[alias.asname or alias.name] = (source, alias.name)
        for node in module.tree.body:
            if isinstance(node, ast.FunctionDef):
                module.defined[node.name] = Function(name, node.name, node, file)
            elif isinstance(node, ast.ClassDef):
                module.defined[node.name] = self.classes[node.name] = self._class(name, node, file)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                module.variables[node.target.id] = words_of(node.annotation)

    def _class(self, module, node, file):
        cls = Class(module, node.name, node, file)
        for item in node.body:
            if isinstance(item, ast.FunctionDef):
                cls.methods[item.name] = Function(module, item.name, item, file, cls)
                if item.name.startswith("ernie_") and not file.match("hookspecs/*"):
                    self.hooks.setdefault(item.name, []).append(cls.methods[item.name])
                if any(isinstance(d, ast.Name) and "property" in d.id for d in item.decorator_list):
                    cls.attributes[item.name] = words_of(item.returns)
            elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                cls.attributes[item.target.id] = words_of(item.annotation)
        if "__init__" in cls.methods:
            self._kept(cls, cls.methods["__init__"])
        return cls

    @staticmethod
    def _kept(cls, init):
        """``self.x = x`` and ``self.x, self.y = x, y``: attributes with the parameters' types."""
        types = {a.arg: words_of(a.annotation) for a in init.parameters}
        for node in ast.walk(init.node):
            if not isinstance(node, ast.Assign):
                continue
            target, value = node.targets[0], node.value
            paired = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            for left, right in zip(target.elts, value.elts, strict=False) if paired else [(target, value)]:
                is_own = (
                    isinstance(left, ast.Attribute) and isinstance(left.value, ast.Name) and left.value.id == "self"
                )
                if not is_own or left.attr in cls.attributes:
                    continue
                if isinstance(right, ast.Name) and right.id in types:
                    cls.attributes[left.attr] = types[right.id]
                elif isinstance(right, ast.Attribute) and isinstance(right.value, ast.Name):
                    cls.attributes[left.attr] = [("of", types.get(right.value.id, []), right.attr)]

    def find(self, module, name, depth=5):
        """What ``name`` is in ``module``: a function, a class or another module."""
        found = self.modules.get(module)
        if found is None or depth == 0:
            return None
        if name in found.defined:
            return found.defined[name]
        if name in found.imports:
            source, original = found.imports[name]
            return self.modules.get(f"{source}.{original}") or self.find(source, original, depth - 1)
        return self.modules.get(f"{module}.{name}")

    def type_of(self, words):
        """The first name that is a class of ours."""
        for word in words:
            if isinstance(word, tuple):
                owner = self.type_of(word[1])
                found = self.attribute(owner, word[2]) if owner else None
            else:
                found = word if word in self.classes else None
            if found:
                return found
        return None

    def attribute(self, owner, name):
        """The class of an attribute of a class, by the classes' names."""
        cls = self.classes.get(owner)
        return self.type_of(cls.attributes.get(name, [])) if cls else None

    def methods(self, owner, name):
        """The method of a class, and of those derived from it."""
        cls = self.classes.get(owner)
        found = [cls.methods[name]] if cls and name in cls.methods else []
        return found + [sub.methods[name] for sub in self.subclasses.get(owner, []) if name in sub.methods]
