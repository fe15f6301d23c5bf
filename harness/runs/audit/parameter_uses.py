"""The uses of parameters in a kernel's text: as pointers, indices, constants of some value.

Example: `tl.load(x + tl.load(rows + i))` makes `x` and `rows` pointers and `rows` an index pointer,
because its content becomes part of an address.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Any

from triton.runtime.jit import JITFunction

from harness.runs.audit.lazy_release import LazyModule
from harness.sanitizer.triton import adapter

_ACCESS_CALLS = ("load", "store", "make_block_ptr", "make_tensor_descriptor")


class ParameterUses(ast.NodeVisitor):
    """The uses of one kernel's parameters, by parameter."""

    def __init__(self, module: LazyModule, node: ast.FunctionDef) -> None:
        self._module = module
        self.pointers: set[str] = set()
        self.index_pointers: set[str] = set()  # their contents become part of an address
        self.compared_with_none: set[str] = set()
        self.atomic_pointers: set[str] = set()  # an atomic operation changes their contents
        self.unrolled_loops: Counter[str] = Counter()  # by constant: the loops with its length
        self.required_values: dict[str, Any] = {}  # values that constants must have
        self.pointee_types: dict[str, str] = {}  # types that follow from the use of a load
        self.compared_words: dict[str, str] = {}  # the first word that a constant is compared with
        self._read_counts = Counter(
            name.id
            for name in ast.walk(node)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load)
        )
        self._parameters = {each.arg for each in (*node.args.args, *node.args.kwonlyargs)}
        self._assignments: dict[str, list[ast.expr]] = {}
        self._addresses: list[ast.expr] = []
        for statement in node.body:
            self.visit(statement)
        for address in self._addresses:
            for index_address in self._iterate_loaded_addresses(address):
                if base := self._find_base(index_address):
                    self.index_pointers.add(base)

    def is_only_loop_count(self, name: str) -> bool:
        """Return whether a constant is only used as the length of unrolled loops."""
        return self.unrolled_loops[name] == self._read_counts[name]

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._assignments.setdefault(target.id, []).append(node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._assignments.setdefault(node.target.id, []).append(node.value)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if isinstance(node.left, ast.Name):
            values = [each.value for each in node.comparators if isinstance(each, ast.Constant)]
            if None in values:
                self.compared_with_none.add(node.left.id)
            if words := [value for value in values if isinstance(value, str)]:
                self.compared_words.setdefault(node.left.id, words[0])
        self.generic_visit(node)

    def _collect_required(self, node: ast.expr) -> None:
        """Add the constants that a static assertion compares with one number or word."""
        match node:
            case ast.BoolOp(op=ast.And(), values=parts):
                for part in parts:
                    self._collect_required(part)
            case ast.Compare(
                left=ast.Name(id=name),
                ops=[ast.Eq()],
                comparators=[ast.Constant(value=int() | str() as value)],
            ):
                self.required_values.setdefault(name, value)

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func).rpartition(".")[2]
        if node.args and (name in _ACCESS_CALLS or name.startswith("atomic_")):
            self._addresses.append(node.args[0])
            self._add_pointer(node.args[0])
            if name.startswith("atomic_"):
                self.atomic_pointers.add(self._find_base(node.args[0]) or "")
        elif name == "static_range":
            # Only the end is a number of iterations, and not if the step is a parameter.
            if not node.args[2:] or isinstance(node.args[2], ast.Constant):
                for end in node.args[:2][-1:]:
                    self.unrolled_loops.update(_iterate_loop_counts(end))
        elif name == "static_assert":
            self._collect_required(node.args[0])
        elif name == "to" and isinstance(node.func, ast.Attribute) and node.args:
            if kind := _find_cast_type(node):
                self._set_pointee_type(node.func.value, kind)
        elif name == "dot":
            for keyword in node.keywords:
                if keyword.arg == "input_precision" and isinstance(keyword.value, ast.Name):
                    self.required_values.setdefault(keyword.value.id, "ieee")
        elif isinstance(node.func, ast.Name):
            self._collect_from_helper(node)
        for keyword in node.keywords:
            if keyword.arg == "mask":
                self._collect_mask(keyword.value)
        self.generic_visit(node)

    def _collect_mask(self, node: ast.expr) -> None:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
            self._collect_mask(node.left)
            self._collect_mask(node.right)
        else:
            self._set_pointee_type(node, "i1")

    def _set_pointee_type(self, node: ast.expr, kind: str, depth: int = 3) -> None:
        """Set the type of the pointers whose loads this expression is."""
        match node:
            case ast.Name(id=name) if depth:
                for value in self._assignments.get(name, ()):
                    self._set_pointee_type(value, kind, depth - 1)
            case ast.Call(func=ast.Attribute(attr="load"), args=[address, *_]):
                self.pointee_types.setdefault(self._find_base(address) or "", kind)

    def _add_pointer(self, node: ast.expr) -> None:
        if base := self._find_base(node):
            self.pointers.add(base)

    def _collect_from_helper(self, call: ast.Call) -> None:
        """Add the uses that a called helper makes of its arguments."""
        helper = self._module.names.get(ast.unparse(call.func))
        if not isinstance(helper, JITFunction):
            return
        [inner] = adapter.get_syntax_tree(helper).body
        uses = find_parameter_uses(self._module, inner)
        names = [each.arg for each in inner.args.args]
        arguments = dict(zip(names, call.args, strict=False))
        arguments |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        for name, value in arguments.items():
            base = self._find_base(value) or ""
            if base and name in uses.pointers:
                self.pointers.add(base)
            if name in uses.index_pointers:
                self.index_pointers.add(base)
            if name in uses.pointee_types:
                self.pointee_types.setdefault(base, uses.pointee_types[name])
            if name in uses.atomic_pointers:
                self.atomic_pointers.add(base)
            if not isinstance(value, ast.Name):
                continue
            if name in uses.unrolled_loops:
                self.unrolled_loops[value.id] += uses.is_only_loop_count(name)
            if name in uses.compared_words:
                self.compared_words.setdefault(value.id, uses.compared_words[name])
            if name in uses.compared_with_none:
                self.compared_with_none.add(value.id)
            if name in uses.required_values:
                self.required_values.setdefault(value.id, uses.required_values[name])

    def _find_base(self, node: ast.expr, seen: frozenset[str] = frozenset()) -> str | None:
        """Find the parameter that an address is a sum of."""
        match node:
            case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=right):
                return self._find_base(left, seen) or self._find_base(right, seen)
            case ast.Call(func=ast.Attribute(value=value, attr="to" | "cast")):
                return self._find_base(value, seen)
            case (
                ast.Call(func=ast.Name(), args=args) | ast.Call(func=ast.Attribute(), args=args)
            ) if args and ast.unparse(node.func).endswith(
                ("multiple_of", "make_block_ptr", "advance", "max_contiguous", "broadcast_to")
            ):
                return self._find_base(args[0], seen)
            case ast.Subscript(value=value):
                return self._find_base(value, seen)
            case ast.IfExp(body=body):
                return self._find_base(body, seen)
            case ast.Name(id=name):
                if name in seen:
                    return None
                for value in self._assignments.get(name, ()):
                    if base := self._find_base(value, seen | {name}):
                        return base
                return name if name in self._parameters else None
        return None

    def _iterate_loaded_addresses(self, node: ast.expr, depth: int = 6) -> Iterator[ast.expr]:
        """Iterate the addresses of the loads that this expression depends on."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and ast.unparse(inner.func).endswith(
                (".load", "atomic_add")
            ):
                yield inner.args[0]
            elif isinstance(inner, ast.Name) and depth:
                for value in self._assignments.get(inner.id, ()):
                    yield from self._iterate_loaded_addresses(value, depth - 1)


def _iterate_loop_counts(node: ast.expr) -> Iterator[str]:
    """Find the constant that a loop's length grows with: `W` of `W` and of `W - 1`."""
    match node:
        case (
            ast.Name(id=name)
            | ast.BinOp(left=ast.Name(id=name), op=ast.Add() | ast.Sub(), right=ast.Constant())
        ):
            yield name


def _find_cast_type(node: ast.Call) -> str:
    """Find the type of a value whose cast keeps its bits: to a pointer, or a bitcast."""
    target = ast.unparse(node.args[0])
    if "pointer_type" in target:
        return "u64"
    if not any(keyword.arg == "bitcast" for keyword in node.keywords):
        return ""
    return next((f"i{bits}" for bits in (64, 32, 16, 8) if f"t{bits}" in target), "")


_USES_CACHE: dict[ast.FunctionDef, ParameterUses] = {}


def find_parameter_uses(module: LazyModule, node: ast.FunctionDef) -> ParameterUses:
    if node not in _USES_CACHE:
        _USES_CACHE[node] = ParameterUses(module, node)
    return _USES_CACHE[node]
