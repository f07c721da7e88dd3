"""A tree of Python modules, parsed: what the rules of `structure_rules` ask about."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import msgspec

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    """`name` is dotted; `path` is relative to the source folder."""

    def __init__(self, name: str, path: str, text: str, *, is_package: bool) -> None:
        self.name, self.path, self.is_package = name, path, is_package
        self.tree = ast.parse(text, filename=path)
        self.nodes = list(ast.walk(self.tree))

    @property
    def package(self) -> str:
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @cached_property
    def imported(self) -> dict[str, str]:
        """Local name -> dotted name, of every import wherever it stands. `from a import b` gives a.b."""
        found: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    local = alias.asname or alias.name.partition(".")[0]
                    found[local] = alias.name if alias.asname else local
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{self._origin(node)}.{alias.name}"
        return found

    @cached_property
    def mentioned(self) -> set[str]:
        """Dotted names that imports mention: a module for `import a.b`, a.b and a.b.c for `from a.b import c`."""
        found: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                origin = self._origin(node)
                found.update(f"{origin}.{alias.name}" for alias in node.names)
                found.add(origin)
        return found

    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in self.tree.body if isinstance(node, ast.ClassDef))

    def _origin(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.package.split(".")
        base = ".".join(parts[: len(parts) - node.level + 1])
        return f"{base}.{node.module}" if node.module else base


class ClassInfo(msgspec.Struct, frozen=True, kw_only=True):
    module: Module
    node: ast.ClassDef
    bases: tuple[str, ...]  # dotted, as far as imports tell

    @property
    def name(self) -> str:
        return f"{self.module.name}.{self.node.name}"

    @property
    def methods(self) -> Iterator[Function]:
        return (node for node in self.node.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


class Source:
    """All modules below a `src` folder."""

    def __init__(self, folder: Path) -> None:
        self.modules: dict[str, Module] = {}
        for path in sorted(folder.rglob("*.py")):
            relative = path.relative_to(folder)
            parts = relative.with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            self.modules[name] = Module(name, relative.as_posix(), path.read_text(), is_package=is_package)

    def below(self, *packages: str) -> list[Module]:
        """The modules of these packages; one that does not exist has none."""
        inside = tuple(f"{package}." for package in packages)
        return [module for name, module in self.modules.items() if name in packages or name.startswith(inside)]

    @cached_property
    def classes(self) -> dict[str, ClassInfo]:
        found = {}
        for module in self.modules.values():
            for node in module.classes():
                bases = tuple(filter(None, (self.resolve(module, base) for base in node.bases)))
                info = ClassInfo(module=module, node=node, bases=bases)
                found[info.name] = info
        return found

    @cached_property
    def families(self) -> dict[str, str]:
        """Class -> the root of its line of inheritance within the tree. A line keeps its state in one object."""
        return {name: self._root(name) for name in self.classes}

    def resolve(self, module: Module, node: ast.expr | None) -> str:
        """The dotted name of a class that an expression names: `Lane`, `effects.Effects`, "Lane", `Lane | None`."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                node = ast.parse(node.value, mode="eval").body
            except SyntaxError:
                return ""
        if isinstance(node, ast.BinOp):
            return self.resolve(module, node.left) or self.resolve(module, node.right)
        if isinstance(node, ast.Name):
            return module.imported.get(node.id, f"{module.name}.{node.id}")
        if isinstance(node, ast.Attribute):
            return f"{self.resolve(module, node.value)}.{node.attr}"
        return self.resolve(module, node.value) if isinstance(node, ast.Subscript) else ""

    def _root(self, name: str) -> str:
        seen = [name]
        while known := [base for base in self.classes[seen[-1]].bases if base in self.classes and base not in seen]:
            seen.append(known[0])
        return seen[-1]


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def is_own_attribute(node: ast.AST) -> bool:
    """`self.x`."""
    return isinstance(node, ast.Attribute) and is_self(node.value)


def assigned_pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, value), of `a, b = x, y` two of them."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value
