"""What is counted in a source tree, each by a rule that can be checked by hand.

**Places that hold sends back until a sync.** A line of classes (classes that inherit from each other) that decides when
a message may leave:
  (a) it has a method `persisted`, and there, or in methods of its own that `persisted` calls, something is taken out
      of a collection that the instance keeps (`popleft`, `pop`, `clear`, a deletion, or an empty collection in its
      place): so it keeps account of syncs that are outstanding, and
  (b) it fills two collections of messages to send, those that may leave and those that wait: two attributes of the
      instance, or two fields of one record that it makes, annotated with a collection of `Message` or of an alias that
      contains it. An attribute with "send" in its name needs no annotation.
A class that only passes records on has one such collection or none. A shell that performs records decides nothing; it
has no `persisted`.

**Lists of errors.** A set, tuple, list or dict literal of two or more error codes (strings that are the `code` of a
class in `avow.errors`, or `Class.code`) on the right of `in` or `not in` when the left is `code` or `something.code`:
directly, or by the name of a module that it is bound to. Those whose name says "pass" claim to know which errors pass
by themselves. The others are listed apart, so that a list with another name is not hidden.

**HTTP/1.1 clients.** Modules that make requests with `http.client` or `urllib.request` (connections, openers; not only
the error classes), that use the response parser of `httptools`, or that search received bytes for the end of a head
(CR LF CR LF, with `find`, `index`, `partition` or `split`) and know `content-length`. The modules of `avow doctor` are
not counted: they ask raw on purpose, to say what a real connection does. The handshake of a WebSocket is a request
without a body and is not counted.

**Modules with one importer.** Modules, other than packages, that exactly one module of the tree imports, which lies in
the same package. Imports for type checking count.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from benchmarks.structure_source import ClassInfo, Module, Source, assigned_pairs, is_own_attribute, is_self

ERRORS: Final = "avow.errors"
_TAKING: Final = frozenset({"popleft", "pop", "clear", "remove", "popitem"})
_HEAD_END: Final = b"\r\n\r\n"
_SEARCHING: Final = frozenset({"find", "index", "partition", "split"})
_REQUESTING: Final = (
    "http.client.HTTPConnection",
    "http.client.HTTPSConnection",
    "urllib.request.urlopen",
    "urllib.request.Request",
    "urllib.request.build_opener",
    "httptools.HttpResponseParser",
)


# ---------------------------------------------------------------------- sends that wait for a sync


def places_that_wait(source: Source) -> list[str]:
    """Class.method of `drain`, or the class alone, of every line of classes that holds sends back."""
    lines: dict[str, list[ClassInfo]] = defaultdict(list)
    for name, info in source.classes.items():
        lines[source.families[name]].append(info)
    messages = _message_types(source)
    found = []
    for root, line in lines.items():
        shipped = [info for info in line if not info.module.name.startswith(("avow.testing.", "avow_lab."))] or line
        holders = Counter(name.partition(".")[0] for name in _send_collections(source, shipped, messages))
        if _keeps_account(shipped) and max(holders.values(), default=0) > 1:
            found.append(_named_by(shipped, root))
    return sorted(found)


def _keeps_account(line: Sequence[ClassInfo]) -> bool:
    methods = {method.name: method for info in line for method in info.methods}
    reached, left = set[str](), ["persisted"]
    while left:
        name = left.pop()
        if name in methods and name not in reached:
            reached.add(name)
            left += [
                node.attr for node in ast.walk(methods[name]) if isinstance(node, ast.Attribute) and is_self(node.value)
            ]
    return any(_takes_out(methods[name]) for name in reached)


def _takes_out(method: ast.AST) -> bool:
    """Something is removed from a collection of `self`, directly or through a local name for it."""
    kept = {
        target.id
        for node in ast.walk(method)
        if isinstance(node, ast.Assign) and is_own_attribute(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(method):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _TAKING:
            taken: list[ast.expr] = [node.func.value]
        elif isinstance(node, ast.Delete):
            taken = [target.value for target in node.targets if isinstance(target, ast.Subscript)]
        elif isinstance(node, ast.Assign):
            taken = [target for target, value in assigned_pairs(node) if _is_empty(value)]
        else:
            continue
        if any(is_own_attribute(each) or (isinstance(each, ast.Name) and each.id in kept) for each in taken):
            return True
    return False


def _send_collections(source: Source, line: Sequence[ClassInfo], messages: set[str]) -> set[str]:
    """`self.x` and `Record.x`: attributes of the instance, and fields of records made here, with messages to send."""
    found: set[str] = set()
    for info in line:
        for node in ast.walk(info.node):
            if (
                isinstance(node, ast.AnnAssign)
                and is_own_attribute(node.target)
                and _mentions(node.annotation, messages)
            ):
                found.add(ast.unparse(node.target))
            elif isinstance(node, ast.Assign):
                found |= {
                    f"self.{target.attr}"
                    for target, value in assigned_pairs(node)
                    if isinstance(target, ast.Attribute)
                    and is_own_attribute(target)
                    and "send" in target.attr
                    and _is_empty(value)
                }
            elif isinstance(node, ast.Call):
                made = source.classes.get(source.resolve(info.module, node.func))
                found |= set(_filled_fields(made, node, messages)) if made is not None else set()
    return found | _written_fields(line, source, messages)


def _filled_fields(record: ClassInfo, call: ast.Call, messages: set[str]) -> Iterator[str]:
    """Fields of a record with messages, given in this call: all that are not a literal of no elements."""
    fields = [
        each for each in record.node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]
    given = {
        each.target.id: value
        for each, value in zip(fields, call.args, strict=False)
        if isinstance(each.target, ast.Name)
    }
    given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    for each in fields:
        name = each.target.id if isinstance(each.target, ast.Name) else ""
        if name in given and not _is_empty(given[name]) and _mentions(each.annotation, messages):
            yield f"{record.node.name}.{name}"


def _written_fields(line: Sequence[ClassInfo], source: Source, messages: set[str]) -> set[str]:
    """Fields of records that a method makes empty and fills afterwards: `effects.sends += ...`."""
    found: set[str] = set()
    for info in line:
        for method in info.methods:
            made = {
                target.id: source.classes.get(source.resolve(info.module, node.value.func))
                for node in ast.walk(method)
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            for node in ast.walk(method):
                target = node.target if isinstance(node, ast.AugAssign) else _appended(node)
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                    record = made.get(target.value.id)
                    if record is not None and target.attr in _message_fields(record, messages):
                        found.add(f"{record.node.name}.{target.attr}")
    return found


def _appended(node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "extend"):
        return node.func.value
    return None


def _message_fields(record: ClassInfo, messages: set[str]) -> set[str]:
    return {
        each.target.id
        for each in record.node.body
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
        and _mentions(each.annotation, messages)
    }


def _message_types(source: Source) -> set[str]:
    """`Message`, and the aliases that are made of it."""
    found = {"Message"}
    aliases = [pair for module in source.modules.values() for pair in _bound(module)]
    while added := {name for name, value in aliases if name not in found and _mentions(value, found)}:
        found |= added
    return found


def _named_by(line: Sequence[ClassInfo], root: str) -> str:
    """Where a reader finds it: the class of the line that is nearest to the root and drains."""
    drains = [info for info in line if any(method.name == "drain" for method in info.methods)]
    first = next((info for info in drains if info.name == root), drains[0] if drains else None)
    return f"{first.node.name}.drain ({first.module.path})" if first is not None else root


# ---------------------------------------------------------------------- lists of errors


def error_lists(source: Source) -> tuple[list[str], list[str]]:
    """Those that say which errors pass, and all others that are asked whether they contain a code."""
    codes = _codes(source)
    if not codes:
        return [], []
    named = {
        f"{module.name}.{name}": (module, name)
        for module in source.modules.values()
        for name, value in _bound(module)
        if _is_code_list(module, value, codes)
    }
    used: dict[str, str] = {}
    for module in source.modules.values():
        for container in _asked_about_codes(module):
            if _is_code_list(module, container, codes):
                used[f"{module.path}:{container.lineno}"] = ""
            elif (known := source.resolve(module, container)) in named:
                used[f"{named[known][0].path}: {named[known][1]}"] = named[known][1]
    passing = sorted(place for place, name in used.items() if "pass" in name.lower())
    return passing, sorted(set(used) - set(passing))


def _codes(source: Source) -> dict[str, str]:
    """Class name -> code, of all classes in `avow.errors`."""
    module = source.modules.get(ERRORS)
    found = {}
    for node in module.classes() if module is not None else ():
        for each in node.body:
            target = each.targets[0] if isinstance(each, ast.Assign) else getattr(each, "target", None)
            value = getattr(each, "value", None)
            if isinstance(target, ast.Name) and target.id == "code" and isinstance(value, ast.Constant):
                found[node.name] = str(value.value)
    return found


def _bound(module: Module) -> Iterator[tuple[str, ast.expr]]:
    for node in module.tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def _asked_about_codes(module: Module) -> Iterator[ast.expr]:
    for node in module.nodes:
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            left = node.left
            named = left.attr if isinstance(left, ast.Attribute) else left.id if isinstance(left, ast.Name) else ""
            if named == "code":
                yield node.comparators[0]


def _is_code_list(module: Module, node: ast.expr, codes: dict[str, str]) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1:
        return node.func.id in ("frozenset", "set", "tuple", "list") and _is_code_list(module, node.args[0], codes)
    if isinstance(node, ast.Dict):
        elements: Iterable[ast.expr | None] = node.keys
    elif isinstance(node, ast.Set | ast.Tuple | ast.List):
        elements = node.elts
    else:
        return False
    listed = list(elements)
    return len(listed) > 1 and all(_is_code(each, codes) for each in listed)


def _is_code(node: ast.expr | None, codes: dict[str, str]) -> bool:
    if isinstance(node, ast.Constant):
        return node.value in codes.values()
    if not isinstance(node, ast.Attribute) or node.attr != "code":
        return False
    of = node.value
    return (of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")) in codes


# ---------------------------------------------------------------------- HTTP clients, importers


def http_clients(source: Source) -> tuple[list[str], list[str]]:
    """Modules of the product, and modules of `avow.testing`."""
    found = [module for module in source.modules.values() if _is_http_client(module)]
    counted = [module for module in found if not module.path.startswith(("avow/cli/doctor_", "avow/cli/doctor/"))]
    testing = sorted(module.path for module in counted if module.name.startswith(("avow.testing.", "avow_lab.")))
    return sorted({module.path for module in counted} - set(testing)), testing


def _is_http_client(module: Module) -> bool:
    used = {_dotted(module, node) for node in module.nodes if isinstance(node, ast.Attribute | ast.Name)}
    if used.intersection(_REQUESTING):
        return True
    constants = [
        node.value for node in module.nodes if isinstance(node, ast.Constant) and isinstance(node.value, bytes)
    ]
    return _searches_head_end(module) and any(b"content-length" in value.lower() for value in constants)


def _searches_head_end(module: Module) -> bool:
    ends = {name for name, value in _bound(module) if isinstance(value, ast.Constant) and value.value == _HEAD_END}
    for node in module.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SEARCHING:
            for each in node.args:
                if isinstance(each, ast.Constant) and each.value == _HEAD_END:
                    return True
                if isinstance(each, ast.Name) and each.id in ends:
                    return True
    return False


def _dotted(module: Module, node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(module, node.value)}.{node.attr}"
    return module.imported.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def single_importers(source: Source) -> dict[str, str]:
    """Module -> its only importer, where that lies in the same package."""
    importers: dict[str, set[str]] = defaultdict(set)
    for module in source.modules.values():
        for name in module.mentioned:
            if name in source.modules and name != module.name:
                importers[name].add(module.name)
    found = {}
    for name, by in importers.items():
        module = source.modules[name]
        only = source.modules[next(iter(by))]
        if len(by) == 1 and not module.is_package and only.package == module.package:
            found[module.path] = only.path
    return dict(sorted(found.items()))


# ---------------------------------------------------------------------- small questions to a syntax tree


def _is_empty(node: ast.expr) -> bool:
    """`[]`, `{}`, `deque()`, `set()`."""
    if isinstance(node, ast.Call):
        return (
            not node.args and not node.keywords and isinstance(node.func, ast.Name) and node.func.id in ("deque", "set")
        )
    return (isinstance(node, ast.List) and not node.elts) or (isinstance(node, ast.Dict) and not node.keys)


def _mentions(annotation: ast.expr, names: set[str]) -> bool:
    """The annotation is a collection whose elements have one of these types."""
    found = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    return isinstance(annotation, ast.Subscript) and bool(found & names)
