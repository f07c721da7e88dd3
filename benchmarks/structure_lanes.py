"""How many attributes of a lane are changed in more than one file.

A lane on one peer is everything its package keeps in instances: `avow.replication.two_phase` or
`avow.replication.pubsub`. Classes that inherit from each other share one object, so `self.x` of any class of a line is
the same attribute; classes that do not are different owners, also when their attributes have the same names.

A change is, in any file of the package or in a module that imports from it (tests excepted),
  - an assignment, augmented assignment or deletion of `owner.x`, of `owner.x[...]`, or of a part of a tuple of them
  - a call of a method of `owner.x` that mutates a built-in collection (`append`, `pop`, `update`, ...)
  - the same through a local name that was bound to `owner.x` in that function
The first assignment, in `__init__` or `__post_init__` of the class itself, is no change: an attribute that is made in
one file and changed in one other has one writer. Assignments to `self` in a constructor of a subclass are none either.

`owner` is known for `self`, for parameters and variables with an annotation, and for attributes that were annotated,
or assigned from an annotated parameter or a constructor. For any other expression in the package it is every class of
the package that has an attribute of that name, which can count too much and never too little.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from benchmarks.structure_source import Function, Module, Source, assigned_pairs, is_self

STRATEGIES: Final = {"two-phase": "avow.replication.two_phase", "pub-sub": "avow.replication.pubsub"}
_OF_LISTS: Final = {"append", "appendleft", "extend", "extendleft", "insert", "popleft", "reverse", "rotate", "sort"}
_OF_SETS: Final = {
    "add",
    "difference_update",
    "discard",
    "intersection_update",
    "symmetric_difference_update",
    "update",
}
MUTATORS: Final = _OF_LISTS | _OF_SETS | {"clear", "pop", "popitem", "remove", "setdefault"}
_CONSTRUCTORS: Final = frozenset({"__init__", "__post_init__"})


def shared_attributes(source: Source, package: str) -> dict[str, list[str]]:
    """`Owner.attribute` -> the files that change it, of those that are changed in more than one."""
    found = changed_attributes(source, package)
    return {name: sorted(files) for name, files in sorted(found.items()) if len(files) > 1}


def changed_attributes(source: Source, package: str) -> dict[str, set[str]]:
    owners = _owners(source, package)
    inside = source.below(package)
    modules = [*inside, *_users(source, package)]
    folder = f"{package.replace('.', '/')}/"
    kinds = _attribute_types(source, modules)
    changed: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        guessed = owners if module in inside else {}
        for function, family in _functions(source, module):
            for owner, attribute in _Changes(source, module, function, family, kinds).found():
                known = [owner] if owner else [name for name, attributes in guessed.items() if attribute in attributes]
                for name in known:
                    if attribute in owners.get(name, ()):
                        changed[f"{name.rpartition('.')[2]}.{attribute}"].add(module.path.removeprefix(folder))
    return changed


def _owners(source: Source, package: str) -> dict[str, set[str]]:
    """Root of a line of classes -> the attributes that its classes declare or assign to `self`."""
    owners: dict[str, set[str]] = defaultdict(set)
    for module in source.below(package):
        for node in module.classes():
            family = source.families[f"{module.name}.{node.name}"]
            for each in ast.walk(node):
                if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and is_self(each.value):
                    owners[family].add(each.attr)
            for each in node.body:
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    owners[family].add(each.target.id)
    return owners


def _users(source: Source, package: str) -> list[Module]:
    """Modules outside the package that import from it, without those that test it."""
    return [
        module
        for module in source.modules.values()
        if not f"{module.name}.".startswith((f"{package}.", "avow.testing.", "avow_lab."))
        and any(f"{name}.".startswith(f"{package}.") for name in module.mentioned)
    ]


def _attribute_types(source: Source, modules: Iterable[Module]) -> dict[tuple[str, str], str]:
    """(family, attribute) -> the family of what it holds, where that is written down."""
    kinds: dict[tuple[str, str], str] = {}
    for module in modules:
        for function, family in _functions(source, module):
            typed = _Changes(source, module, function, family, {})
            for node in ast.walk(function):
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
                    pairs: list[tuple[ast.expr, str]] = [(node.target, typed.family_of(node.annotation))]
                elif isinstance(node, ast.Assign):
                    pairs = [(target, typed.kind(value)) for target, value in assigned_pairs(node)]
                else:
                    continue
                for target, kind in pairs:
                    if kind and isinstance(target, ast.Attribute) and is_self(target.value):
                        kinds[family, target.attr] = kind
    return kinds


def _functions(source: Source, module: Module) -> Iterator[tuple[Function, str]]:
    """Every function of the module, with the family that `self` is there. Nested ones are part of their outer one."""
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node, ""
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield method, source.families[f"{module.name}.{node.name}"]


class _Changes:
    """What one function changes, as (owner, attribute); the owner is empty when it is not known."""

    def __init__(
        self, source: Source, module: Module, function: Function, family: str, kinds: dict[tuple[str, str], str]
    ) -> None:
        self._source, self._module, self._function, self._family = source, module, function, family
        self._kinds = kinds
        self._resolving: set[str] = set()
        self._types = dict(self._annotated())
        self._aliases = {
            target.id: value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target, value in assigned_pairs(node)
            if isinstance(target, ast.Name) and isinstance(value, ast.Attribute)
        }

    def found(self) -> Iterator[tuple[str, str]]:
        for node in ast.walk(self._function):
            for target in _targets(node):
                yield from self._changed(target)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
                yield from self._changed(node.func.value, inside=True)

    def _changed(self, target: ast.expr, *, inside: bool = False) -> Iterator[tuple[str, str]]:
        """`inside`: the object is changed and not the name that is bound to it."""
        if isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                yield from self._changed(each, inside=inside)
        elif isinstance(target, ast.Starred):
            yield from self._changed(target.value, inside=inside)
        elif isinstance(target, ast.Subscript):
            yield from self._changed(target.value, inside=True)
        elif isinstance(target, ast.Name) and inside and target.id in self._aliases:
            yield from self._changed(self._aliases[target.id], inside=True)
        elif isinstance(target, ast.Attribute):
            made = not inside and is_self(target.value) and self._function.name in _CONSTRUCTORS
            if not made:
                yield self.kind(target.value), target.attr

    def kind(self, node: ast.expr) -> str:
        """The family of an expression's value; empty when nothing says it."""
        if is_self(node):
            return self._family
        if isinstance(node, ast.Call):
            return self.family_of(node.func)
        if isinstance(node, ast.Attribute):
            return self._kinds.get((self.kind(node.value), node.attr), "")
        if not isinstance(node, ast.Name):
            return ""
        return self._types.get(node.id) or self._kind_of_alias(node.id)

    def _kind_of_alias(self, name: str) -> str:
        if name not in self._aliases or name in self._resolving:  # x = x.next
            return ""
        self._resolving.add(name)
        kind = self.kind(self._aliases[name])
        self._resolving.remove(name)
        return kind

    def family_of(self, annotation: ast.expr | None) -> str:
        return self._source.families.get(self._source.resolve(self._module, annotation), "")

    def _annotated(self) -> Iterator[tuple[str, str]]:
        arguments = self._function.args
        for each in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
            yield each.arg, self.family_of(each.annotation)
        for node in ast.walk(self._function):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id, self.family_of(node.annotation)


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    if isinstance(node, ast.AugAssign):
        return [node.target]
    if isinstance(node, ast.AnnAssign):
        return [node.target] if node.value is not None else []
    if isinstance(node, ast.Delete):
        return node.targets
    return [node.target] if isinstance(node, ast.For | ast.AsyncFor) else []
