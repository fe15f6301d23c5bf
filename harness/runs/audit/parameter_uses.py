"""How a kernel's text uses its parameters: what they point to, what it asks of its constants."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Any

from triton.runtime.jit import JITFunction

from harness.kernels.triton import adapter
from harness.runs.audit.lazy_release import LazyModule

_ACCESS_CALLS = ("load", "store", "make_block_ptr", "make_tensor_descriptor")


class ParameterUses(ast.NodeVisitor):
    """How a kernel's text uses its parameters."""

    def __init__(self, module: LazyModule, node: ast.FunctionDef) -> None:
        self._module = module
        self.pointers: set[str] = set()
        self.index_pointers: set[str] = set()  # pointers to what becomes part of an address
        self.compared_with_none: set[str] = set()  # those compared with None
        self.atomic_pointers: set[str] = set()  # pointers to what is changed atomically
        self.unrolled_loops: Counter[str] = (
            Counter()
        )  # constants that say how often a loop is unrolled
        self.required_values: dict[str, Any] = {}  # what the kernel's text asks of a constant
        self.pointee_types: dict[str, str] = {}  # what is pointed to, where its use says so
        self.compared_words: dict[
            str, str
        ] = {}  # the first of those that a constant is compared with
        self._read_counts = Counter(
            one.id
            for one in ast.walk(node)
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)
        )
        self._parameters = {one.arg for one in (*node.args.args, *node.args.kwonlyargs)}
        self._assignments: dict[str, list[ast.expr]] = {}
        self._addresses: list[ast.expr] = []
        for statement in node.body:
            self.visit(statement)
        loaded: list[ast.expr] = []
        for address in self._addresses:
            loaded += self._iterate_loaded_addresses(address)
        for one in loaded:
            base = self._find_base(one)
            if base:
                self.index_pointers.add(base)

    def is_only_loop_count(self, name: str) -> bool:
        """Whether a constant counts unrolled loops and nothing else: more of it is more turns."""
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
        against = [one for one in node.comparators if isinstance(one, ast.Constant)]
        if isinstance(node.left, ast.Name) and any(one.value is None for one in against):
            self.compared_with_none.add(node.left.id)
        words = [one.value for one in against if isinstance(one.value, str)]
        if isinstance(node.left, ast.Name) and words:
            self.compared_words.setdefault(node.left.id, words[0])
        self.generic_visit(node)

    def _collect_required(self, node: ast.expr) -> None:
        """A number or a word that a kernel insists on, and nothing else."""
        match node:
            case ast.BoolOp(op=ast.And(), values=both):
                for one in both:
                    self._collect_required(one)
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
            # Where it begins, and by how much it goes on, is no number of turns; by a step that
            # is a parameter, nor is where it ends.
            if not node.args[2:] or isinstance(node.args[2], ast.Constant):
                self.unrolled_loops.update(
                    name for one in node.args[:2][-1:] for name in _iterate_loop_counts(one)
                )
        elif name == "static_assert":
            self._collect_required(node.args[0])
        elif name == "to" and isinstance(node.func, ast.Attribute) and node.args:
            kind = _find_cast_type(node)
            if kind:
                self._set_pointee_type(node.func.value, kind)
        elif name == "dot":
            for one in node.keywords:
                if one.arg == "input_precision" and isinstance(one.value, ast.Name):
                    self.required_values.setdefault(one.value.id, "ieee")
        elif isinstance(node.func, ast.Name):
            self._collect_from_helper(node)
        for one in node.keywords:
            if one.arg == "mask":
                self._collect_mask(one.value)
        self.generic_visit(node)

    def _collect_mask(self, node: ast.expr) -> None:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
            self._collect_mask(node.left)
            self._collect_mask(node.right)
        else:
            self._set_pointee_type(node, "i1")

    def _set_pointee_type(self, node: ast.expr, kind: str, depth: int = 3) -> None:
        """What is loaded into this is of a kind."""
        match node:
            case ast.Name(id=name) if depth:
                for value in self._assignments.get(name, ()):
                    self._set_pointee_type(value, kind, depth - 1)
            case ast.Call(func=ast.Attribute(attr="load"), args=[address, *_]):
                self.pointee_types.setdefault(self._find_base(address) or "", kind)

    def _add_pointer(self, node: ast.expr) -> None:
        base = self._find_base(node)
        if base:
            self.pointers.add(base)

    def _collect_from_helper(self, call: ast.Call) -> None:
        """What a function that it calls does with what it is given."""
        helper = self._module.names.get(ast.unparse(call.func))
        if not isinstance(helper, JITFunction):
            return
        [inner] = adapter.get_syntax_tree(helper).body
        uses = find_parameter_uses(self._module, inner)
        names = [one.arg for one in inner.args.args]
        given = dict(zip(names, call.args, strict=False))
        given |= {one.arg: one.value for one in call.keywords if one.arg}
        for name, value in given.items():
            if name in uses.pointers:
                self._add_pointer(value)
            if name in uses.index_pointers:
                self.index_pointers.add(self._find_base(value) or "")
            if name in uses.pointee_types:
                self.pointee_types.setdefault(
                    self._find_base(value) or "", uses.pointee_types[name]
                )
            if name in uses.atomic_pointers:
                self.atomic_pointers.add(self._find_base(value) or "")
            if name in uses.unrolled_loops and isinstance(value, ast.Name):
                self.unrolled_loops[value.id] += uses.is_only_loop_count(name)
            if name in uses.compared_words and isinstance(value, ast.Name):
                self.compared_words.setdefault(value.id, uses.compared_words[name])
            if name in uses.compared_with_none and isinstance(value, ast.Name):
                self.compared_with_none.add(value.id)
            if name in uses.required_values and isinstance(value, ast.Name):
                self.required_values.setdefault(value.id, uses.required_values[name])

    def _find_base(self, node: ast.expr, seen: frozenset[str] = frozenset()) -> str | None:
        """The parameter at the left end of a sum."""
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
                    found = self._find_base(value, seen | {name})
                    if found:
                        return found
                return name if name in self._parameters else None
        return None

    def _iterate_loaded_addresses(self, node: ast.expr, depth: int = 6) -> Iterator[ast.expr]:
        """The addresses of loads that this expression is made from."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and ast.unparse(inner.func).endswith(
                (".load", "atomic_add")
            ):
                yield inner.args[0]
            elif isinstance(inner, ast.Name) and depth:
                for value in self._assignments.get(inner.id, ()):
                    yield from self._iterate_loaded_addresses(value, depth - 1)


def _iterate_loop_counts(node: ast.expr) -> Iterator[str]:
    """What a number of turns grows with: `W`, `W - 1`."""
    match node:
        case (
            ast.Name(id=name)
            | ast.BinOp(left=ast.Name(id=name), op=ast.Add() | ast.Sub(), right=ast.Constant())
        ):
            yield name


def _find_cast_type(node: ast.Call) -> str:
    """Of what is cast, where that has to be as wide as what it becomes: a pointer, other bits."""
    given = ast.unparse(node.args[0])
    if "pointer_type" in given:
        return "u64"
    if not any(one.arg == "bitcast" for one in node.keywords):
        return ""
    return next((f"i{bits}" for bits in (64, 32, 16, 8) if f"t{bits}" in given), "")


_USES_CACHE: dict[ast.FunctionDef, ParameterUses] = {}


def find_parameter_uses(module: LazyModule, node: ast.FunctionDef) -> ParameterUses:
    if node not in _USES_CACHE:
        _USES_CACHE[node] = ParameterUses(module, node)
    return _USES_CACHE[node]
