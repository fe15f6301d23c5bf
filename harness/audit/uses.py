"""How a kernel's text uses its parameters: what they point to, what it asks of its constants."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Any

from triton.runtime.jit import JITFunction

from harness.audit.loading import Module
from harness.kernels import frontend

_ACCESSES = ("load", "store", "make_block_ptr", "make_tensor_descriptor")


class Uses(ast.NodeVisitor):
    """How a kernel's text uses its parameters."""

    def __init__(self, module: Module, node: ast.FunctionDef) -> None:
        self._module = module
        self.pointers: set[str] = set()
        self.indices: set[str] = set()  # pointers to what becomes part of an address
        self.absent: set[str] = set()  # those compared with None
        self.counted: set[str] = set()  # pointers to what is changed atomically
        self.turns: Counter[str] = Counter()  # constants that say how often a loop is unrolled
        self.required: dict[str, Any] = {}  # what the kernel's text asks of a constant
        self.kinds: dict[str, str] = {}  # what is pointed to, where its use says so
        self.words: dict[str, str] = {}  # the first of those that a constant is compared with
        self._read = Counter(
            one.id
            for one in ast.walk(node)
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)
        )
        self._parameters = {one.arg for one in (*node.args.args, *node.args.kwonlyargs)}
        self._assigned: dict[str, list[ast.expr]] = {}
        self._addresses: list[ast.expr] = []
        for statement in node.body:
            self.visit(statement)
        loaded: list[ast.expr] = []
        for address in self._addresses:
            loaded += self._followed(address)
        for one in loaded:
            base = self._base(one)
            if base:
                self.indices.add(base)

    def only_turns(self, name: str) -> bool:
        """Whether a constant counts unrolled loops and nothing else: more of it is more turns."""
        return self.turns[name] == self._read[name]

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._assigned.setdefault(target.id, []).append(node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._assigned.setdefault(node.target.id, []).append(node.value)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        against = [one for one in node.comparators if isinstance(one, ast.Constant)]
        if isinstance(node.left, ast.Name) and any(one.value is None for one in against):
            self.absent.add(node.left.id)
        words = [one.value for one in against if isinstance(one.value, str)]
        if isinstance(node.left, ast.Name) and words:
            self.words.setdefault(node.left.id, words[0])
        self.generic_visit(node)

    def _asserted(self, node: ast.expr) -> None:
        """A number or a word that a kernel insists on, and nothing else."""
        match node:
            case ast.BoolOp(op=ast.And(), values=both):
                for one in both:
                    self._asserted(one)
            case ast.Compare(
                left=ast.Name(id=name),
                ops=[ast.Eq()],
                comparators=[ast.Constant(value=int() | str() as value)],
            ):
                self.required.setdefault(name, value)

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func).rpartition(".")[2]
        if node.args and (name in _ACCESSES or name.startswith("atomic_")):
            self._addresses.append(node.args[0])
            self._points(node.args[0])
            if name.startswith("atomic_"):
                self.counted.add(self._base(node.args[0]) or "")
        elif name == "static_range":
            # Where it begins, and by how much it goes on, is no number of turns; by a step that
            # is a parameter, nor is where it ends.
            if not node.args[2:] or isinstance(node.args[2], ast.Constant):
                self.turns.update(name for one in node.args[:2][-1:] for name in _counted_by(one))
        elif name == "static_assert":
            self._asserted(node.args[0])
        elif name == "to" and isinstance(node.func, ast.Attribute) and node.args:
            kind = _kind_of_cast(node)
            if kind:
                self._are(node.func.value, kind)
        elif name == "dot":
            for one in node.keywords:
                if one.arg == "input_precision" and isinstance(one.value, ast.Name):
                    self.required.setdefault(one.value.id, "ieee")
        elif isinstance(node.func, ast.Name):
            self._helped(node)
        for one in node.keywords:
            if one.arg == "mask":
                self._mask(one.value)
        self.generic_visit(node)

    def _mask(self, node: ast.expr) -> None:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
            self._mask(node.left)
            self._mask(node.right)
        else:
            self._are(node, "i1")

    def _are(self, node: ast.expr, kind: str, deep: int = 3) -> None:
        """What is loaded into this is of a kind."""
        match node:
            case ast.Name(id=name) if deep:
                for value in self._assigned.get(name, ()):
                    self._are(value, kind, deep - 1)
            case ast.Call(func=ast.Attribute(attr="load"), args=[address, *_]):
                self.kinds.setdefault(self._base(address) or "", kind)

    def _points(self, node: ast.expr) -> None:
        base = self._base(node)
        if base:
            self.pointers.add(base)

    def _helped(self, call: ast.Call) -> None:
        """What a function that it calls does with what it is given."""
        helper = self._module.names.get(ast.unparse(call.func))
        if not isinstance(helper, JITFunction):
            return
        [inner] = frontend.tree_of(helper).body
        uses = uses_of(self._module, inner)
        names = [one.arg for one in inner.args.args]
        given = dict(zip(names, call.args, strict=False))
        given |= {one.arg: one.value for one in call.keywords if one.arg}
        for name, value in given.items():
            if name in uses.pointers:
                self._points(value)
            if name in uses.indices:
                self.indices.add(self._base(value) or "")
            if name in uses.kinds:
                self.kinds.setdefault(self._base(value) or "", uses.kinds[name])
            if name in uses.counted:
                self.counted.add(self._base(value) or "")
            if name in uses.turns and isinstance(value, ast.Name):
                self.turns[value.id] += uses.only_turns(name)
            if name in uses.words and isinstance(value, ast.Name):
                self.words.setdefault(value.id, uses.words[name])
            if name in uses.absent and isinstance(value, ast.Name):
                self.absent.add(value.id)
            if name in uses.required and isinstance(value, ast.Name):
                self.required.setdefault(value.id, uses.required[name])

    def _base(self, node: ast.expr, seen: frozenset[str] = frozenset()) -> str | None:
        """The parameter at the left end of a sum."""
        match node:
            case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=right):
                return self._base(left, seen) or self._base(right, seen)
            case ast.Call(func=ast.Attribute(value=value, attr="to" | "cast")):
                return self._base(value, seen)
            case (
                ast.Call(func=ast.Name(), args=args) | ast.Call(func=ast.Attribute(), args=args)
            ) if args and ast.unparse(node.func).endswith(
                ("multiple_of", "make_block_ptr", "advance", "max_contiguous", "broadcast_to")
            ):
                return self._base(args[0], seen)
            case ast.Subscript(value=value):
                return self._base(value, seen)
            case ast.IfExp(body=body):
                return self._base(body, seen)
            case ast.Name(id=name):
                if name in seen:
                    return None
                for value in self._assigned.get(name, ()):
                    found = self._base(value, seen | {name})
                    if found:
                        return found
                return name if name in self._parameters else None
        return None

    def _followed(self, node: ast.expr, depth: int = 6) -> Iterator[ast.expr]:
        """The addresses of loads that this expression is made from."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and ast.unparse(inner.func).endswith(
                (".load", "atomic_add")
            ):
                yield inner.args[0]
            elif isinstance(inner, ast.Name) and depth:
                for value in self._assigned.get(inner.id, ()):
                    yield from self._followed(value, depth - 1)


def _counted_by(node: ast.expr) -> Iterator[str]:
    """What a number of turns grows with: `W`, `W - 1`."""
    match node:
        case (
            ast.Name(id=name)
            | ast.BinOp(left=ast.Name(id=name), op=ast.Add() | ast.Sub(), right=ast.Constant())
        ):
            yield name


def _kind_of_cast(node: ast.Call) -> str:
    """Of what is cast, where that has to be as wide as what it becomes: a pointer, other bits."""
    given = ast.unparse(node.args[0])
    if "pointer_type" in given:
        return "u64"
    if not any(one.arg == "bitcast" for one in node.keywords):
        return ""
    return next((f"i{bits}" for bits in (64, 32, 16, 8) if f"t{bits}" in given), "")


_KNOWN: dict[ast.FunctionDef, Uses] = {}


def uses_of(module: Module, node: ast.FunctionDef) -> Uses:
    if node not in _KNOWN:
        _KNOWN[node] = Uses(module, node)
    return _KNOWN[node]
