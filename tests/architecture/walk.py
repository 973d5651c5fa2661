"""How far an object travels through the code, read from the syntax trees alone: a stop is a function that is given it.

    python tests/architecture/walk.py                the settings, from ``ernie run`` on
    python tests/architecture/walk.py batch          one batch, from the data to the update of the weights

The walk starts in one function and follows every call that it can resolve: names, imports, methods of objects whose class
an annotation tells, hooks to all their implementations. It walks through the core and the plugins of a plain run. A function
is a *stop* when a parameter of it is the object, or an object with a public attribute that is the object (a trainer has
``context``, a ``RunView`` has ``settings``); also a dataclass that is made with it, and a method that reads an attribute
where its object keeps it. One section of the settings is not the settings.
"""

import ast
import sys
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from syntax import Class, Code, Function, Module, words_of

ROOT = Path(__file__).parents[2]
#: width of the picture
COLUMNS = 110
#: what a plain run of a dense model consists of
SOURCES = ("erniecore", "plugins/models/ernie45", "plugins/methods/sft", "plugins/formats/formats")
#: start, names of classes that are the object, and what functions may hand on beside calls: do returned ones count?
WALKS = {
    "settings": ("erniecore.cli.run:run", ("LoadedSettings", "RunSettings", "RunContext", "RunView", "View"), False),
    "batch": ("erniecore.engine.training.trainer:Trainer._step", ("Batch",), True),
}
#: arguments of hooks that plugins need not annotate
HOOK_ARGUMENTS = {"settings": "RunSettings", "run": "RunView", "batches": "Batch", "batch": "Batch"}


class Walk:
    """The walk of one object. ``stops``: functions and classes in the order in which they are found; ``came_from``: the stop
    that leads to each. ``lost``: calls that are given the object and lead where the walk cannot follow."""

    def __init__(self, code, start, objects, returned):
        self.code, self.objects, self.returned = code, set(objects), returned
        self.carriers = self._carriers()
        self.stops, self.came_from, self._seen = [], {}, set()
        self.lost = set()
        module, _, name = start.partition(":")
        owner, _, method = name.rpartition(".")
        first = code.classes[owner].methods[method] if owner else code.find(module, name)
        self._stop(first, None)
        self._visit(first, {}, first)

    def _carriers(self):
        """Classes with the object as a public attribute; a view of it counts as it does."""
        found = set(self.objects)
        for cls in self.code.classes.values():
            public = [name for name in cls.attributes if not name.startswith("_")]
            if any(self.code.attribute(cls.name, name) in self.objects for name in public):
                found.add(cls.name)
        return found

    def _stop(self, where, origin):
        if where not in self.stops:
            self.stops.append(where)
            self.came_from[id(where)] = origin

    def _visit(self, function, given, origin):
        """Follow the calls of a function whose parameters have these types."""
        types = {a.arg: self.code.type_of(words_of(a.annotation)) for a in function.parameters}
        types |= {name: kind for name, kind in given.items() if kind and not types.get(name)}
        key = (id(function.node), tuple(sorted((n, t) for n, t in types.items() if t)))
        if key in self._seen:
            return
        self._seen.add(key)
        if function.owner:
            types["self"] = function.owner.name
        receives = any(types.get(a.arg) in self.carriers for a in function.parameters)
        receives = receives or (types.get("self") in self.objects and function.name != "__init__")
        hands_on = self.returned and self.code.type_of(words_of(function.node.returns)) in self.objects
        if receives or hands_on or self._reads_kept(function):
            self._stop(function, origin)
            origin = function
        Calls(self, function, types, origin).visit(function.node)

    def _reads_kept(self, function):
        """Whether a method reads an attribute of its own object that is the object of the walk."""
        if function.owner is None:
            return False
        kept = {n for n in function.owner.attributes if self.code.attribute(function.owner.name, n) in self.objects}
        return any(
            isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "self" and n.attr in kept
            for n in ast.walk(function.node)
            if isinstance(getattr(n, "ctx", None), ast.Load)
        )

    @property
    def files(self):
        """Files with a stop, in order."""
        return list(dict.fromkeys(stop.file for stop in self.stops))


class Calls(ast.NodeVisitor):
    """The calls within one function."""

    def __init__(self, walk, function, types, origin):
        self.walk, self.code, self.function, self.types, self.origin = walk, walk.code, function, types, origin

    def kind(self, node):
        """The class of an expression, where it can be told."""
        if isinstance(node, ast.Name):
            variables = self.code.modules[self.function.module].variables
            return self.types.get(node.id) or self.code.type_of(variables.get(node.id, []))
        if isinstance(node, ast.Attribute):
            return self.code.attribute(self.kind(node.value), node.attr)
        if isinstance(node, ast.Call):
            for target in self.targets(node.func):
                if isinstance(target, Class):
                    return target.name
                return self.code.type_of(words_of(target.node.returns))
        if isinstance(node, ast.IfExp):
            return self.kind(node.body) or self.kind(node.orelse)
        if isinstance(node, ast.Subscript):
            return self.kind(node.value)
        return None

    def targets(self, func):
        """What a call may run."""
        if isinstance(func, ast.Name):
            found = self.code.find(self.function.module, func.id)
            if found is None and self.types.get(func.id):
                return self.code.methods(self.types[func.id], "__call__")
            return [found] if isinstance(found, Function | Class) else []
        if not isinstance(func, ast.Attribute):
            return []
        if func.attr.startswith("ernie_"):
            return self.code.hooks.get(func.attr, [])
        owner = self.kind(func.value)
        if owner:
            attribute = self.code.attribute(owner, func.attr)
            return self.code.methods(owner, func.attr) or (
                self.code.methods(attribute, "__call__") if attribute else []
            )
        if isinstance(func.value, ast.Name):
            module = self.code.find(self.function.module, func.value.id)
            if isinstance(module, Module):
                found = self.code.find(module.name, func.attr)
                return [found] if isinstance(found, Function | Class) else []
        return []

    def visit_For(self, node):
        if isinstance(node.target, ast.Name):
            self.types[node.target.id] = self.kind(node.iter)
        self.generic_visit(node)

    def visit_comprehension(self, node):
        if isinstance(node.target, ast.Name):
            self.types[node.target.id] = self.kind(node.iter)
        self.generic_visit(node)

    def visit_ListComp(self, node):
        for generator in node.generators:
            self.visit(generator)
        self.generic_visit(node)

    visit_GeneratorExp = visit_SetComp = visit_DictComp = visit_ListComp  # noqa: N815

    def visit_Assign(self, node):
        self.generic_visit(node)
        target, value = node.targets[0], node.value
        paired = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        for left, right in zip(target.elts, value.elts, strict=False) if paired else [(target, value)]:
            if isinstance(left, ast.Name):
                self.types[left.id] = self.kind(right) or self.types.get(left.id)
            elif isinstance(left, ast.Tuple) and isinstance(right, ast.Call):
                self.types |= self.unpacked(left, right)

    def unpacked(self, names, call):
        """The classes of ``a, b = f()``, from what ``f`` says that it returns."""
        for target in self.targets(call.func):
            returns = target.node.returns if isinstance(target, Function) else None
            if isinstance(returns, ast.Subscript) and isinstance(returns.slice, ast.Tuple):
                pairs = zip(names.elts, returns.slice.elts, strict=False)
                return {n.id: self.code.type_of(words_of(e)) for n, e in pairs if isinstance(n, ast.Name)}
        return {}

    def visit_Attribute(self, node):
        """A hook that is named is called, if by nothing else than its implementations."""
        if node.attr.startswith("ernie_") and self.function.name == node.attr.removeprefix("ernie_"):
            for target in self.code.hooks.get(node.attr, []):
                self.enter(target, dict.fromkeys((a.arg for a in target.parameters), None))
        self.generic_visit(node)

    def visit_Call(self, node):
        self.generic_visit(node)
        func, arguments = node.func, node.args
        if isinstance(func, ast.Name) and func.id == "partial" and arguments:
            func, arguments = arguments[0], arguments[1:]
        targets = self.targets(func)
        handed = [
            value for value in (*arguments, *(k.value for k in node.keywords)) if self.kind(value) in self.walk.objects
        ]
        is_hook = isinstance(func, ast.Attribute) and func.attr.startswith(
            "ernie_"
        )  # it may have no implementation here
        if handed and not targets and not is_hook:
            self.walk.lost.add(f"{self.function.module}: {ast.unparse(func)}")
        for target in targets:
            called = target.methods.get("__init__") if isinstance(target, Class) else target
            names = [a.arg for a in called.parameters] if called else list(target.attributes)
            given = {name: self.kind(value) for name, value in zip(names, arguments, strict=False)}
            given |= {k.arg: self.kind(k.value) for k in node.keywords if k.arg}
            if called is not None:
                self.enter(called, given)
            elif any(kind in self.walk.carriers for kind in given.values()):
                self.walk._stop(target, self.origin)

    def enter(self, function, given):
        if function.name.startswith("ernie_"):
            given = {a.arg: given.get(a.arg) or HOOK_ARGUMENTS.get(a.arg) for a in function.parameters}
        self.walk._visit(function, given, self.origin)


def read():
    """The code of a plain run."""
    return Code(ROOT, SOURCES)


def walk(name, code=None):
    """The walk ``settings`` or ``batch``."""
    return Walk(code or read(), *WALKS[name])


def label(stop):
    return stop.qualname if isinstance(stop, Function) else stop.name


def picture(found, root=ROOT):
    """One line per file, below the file that leads to it, with its stops."""
    by_file, parents = {}, {}
    for stop in found.stops:
        origin = found.came_from[id(stop)]
        by_file.setdefault(stop.file, []).append(label(stop))
        parents.setdefault(stop.file, origin.file if origin is not None else None)
    rows = []

    def add(file, depth):
        name = str(file.relative_to(root)).removeprefix("erniecore/")
        rows.append(("  " * depth + name, by_file[file]))
        for child in by_file:
            if parents[child] == file and child != file:
                add(child, depth + 1)

    add(found.stops[0].file, 0)
    width, lines = max(len(name) for name, _ in rows) + 2, []
    for name, stops in rows:
        first, *rest = textwrap.wrap(", ".join(s.removesuffix(".__init__") for s in stops), COLUMNS - width)
        lines += [f"{name:<{width}}{first}", *(" " * width + line for line in rest)]
    return lines


def main(words):
    found = walk(words[0] if words else "settings")
    sys.stdout.write("\n".join(picture(found)) + f"\n{len(found.stops)} stops in {len(found.files)} files\n")
    sys.stdout.write("".join(f"lost: {call}\n" for call in sorted(found.lost)))


if __name__ == "__main__":
    main(sys.argv[1:])
