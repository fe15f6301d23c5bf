"""What the host gives a kernel, read off the code that launches it.

A launch is `kernel[grid](arguments)` in some function. Each argument becomes an expression over
what the caller can see: `q.stride(0)`, `x.shape[1]`, a parameter; sums, products and roundings of
these are followed, back through the function's own assignments.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from harness.audit import made
from harness.audit.demands import test
from harness.audit.expressions import OPERATIONS, Expression, single
from harness.audit.given import Found, Given
from harness.audit.loading import Module

_SYMBOLS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}
_NAME = re.compile(r"[A-Za-z_]\w*")
_GUESSED = "?"  # a branch that was taken for the likelier one
_NEW = frozenset(
    "empty zeros ones full arange tensor as_tensor empty_strided "
    "new_empty new_zeros new_ones new_full".split()
)
_AS_LARGE = frozenset("contiguous to cuda clone detach float half bfloat16 int long".split())
_SAME = frozenset(
    "contiguous view reshape clone flatten squeeze unsqueeze transpose t permute narrow expand "
    "detach cuda empty_like zeros_like ones_like full_like unflatten view_as T mT data".split()
)


@dataclass(frozen=True, slots=True)
class Launch:
    """One place that launches a kernel."""

    file: str
    line: int
    function: str
    arguments: dict[str | int, Given] = field(default_factory=dict)
    grid: tuple[Expression, ...] | None = None
    sure: bool = True  # of the grid
    demands: tuple[Expression, ...] = ()  # what the function asks before it launches
    ranks: dict[str, int] = field(default_factory=dict)  # of tensors whose shape it takes apart
    called: dict[str, str] = field(default_factory=dict)  # by a side of a tensor its name there


class Host:
    """A function's names just before a line."""

    def __init__(self, module: Module, scope: ast.FunctionDef | None, line: int) -> None:
        self._module, self._line = module, line
        self._annotations: dict[str, str] = {}
        self._defaults: dict[str, ast.expr] = {}
        self.assigned: dict[str, tuple[ast.expr, int | None]] = {}
        self.following: set[str] = set()
        self.touched: set[str] = set()  # names that were followed
        self._bound: Counter[str] = Counter()  # how often each name is
        self.ranks: dict[str, int] = {}
        self.called: dict[str, str] = {}
        if scope is None:
            return
        given = scope.args
        for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs):
            self._annotations[argument.arg] = (
                ast.unparse(argument.annotation) if argument.annotation else ""
            )
        for argument, default in zip(
            given.args[len(given.args) - len(given.defaults) :], given.defaults, strict=True
        ):
            self._defaults[argument.arg] = default
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign) and node.lineno < line:
                for target in node.targets:
                    self._assign(target, node.value)
            elif isinstance(node, ast.AnnAssign) and node.value and node.lineno < line:
                self._assign(node.target, node.value)
            elif isinstance(node, (ast.AugAssign, ast.For, ast.NamedExpr)) and node.lineno < line:
                self._bound.update(
                    2 * [one.id for one in ast.walk(node.target) if isinstance(one, ast.Name)]
                )
            elif isinstance(node, ast.FunctionDef) and node is not scope:
                self.assigned[node.name] = (ast.Lambda(node.args, _returned(node)), None)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        match target, value:
            case ast.Name(id=name), ast.Call(
                func=ast.Attribute(value=ast.Name(id=other), attr=attr)
            ):
                if name == other and attr in _AS_LARGE:
                    return
        self._bound.update(one.id for one in ast.walk(target) if isinstance(one, ast.Name))
        if isinstance(target, ast.Name):
            self.assigned[target.id] = (value, None)
            if isinstance(value, ast.Subscript):
                self.called.setdefault(ast.unparse(value), target.id)
        elif isinstance(target, ast.Tuple):
            match value:
                case (
                    ast.Attribute(value=ast.Name(id=whole), attr="shape")
                    | ast.Call(func=ast.Attribute(value=ast.Name(id=whole), attr="size"), args=[])
                ) if not any(isinstance(one, ast.Starred) for one in target.elts):
                    self.ranks[whole] = len(target.elts)
                    for place, one in enumerate(target.elts):
                        if isinstance(one, ast.Name):
                            self.called.setdefault(f"{whole}.shape[{place}]", one.id)
            for place, one in enumerate(target.elts):
                if isinstance(one, ast.Name):
                    self.assigned[one.id] = (value, place)

    # Values

    def given(self, node: ast.expr) -> Given:
        try:
            return self._given(node)
        except RecursionError:
            return Given()

    def argument(self, node: ast.expr) -> Given:
        """With what a launch needs to be made again, and no more than the code says."""
        found, sure = self.surely(lambda: self.given(node))
        if found.kind == "tensor":
            many, known = self.surely(lambda: made.elements(self, node))
            return replace(found, elements=many if known else None, sure=sure)
        if found.kind == "flag":
            asked, sure = self.surely(lambda: test(self, node))
            return replace(found, test=asked, sure=sure)
        computed = not found.is_known and isinstance(node, ast.Name) and node.id in self.assigned
        return replace(found, sure=sure and not computed)

    def surely(self, follow: Callable[[], Found]) -> tuple[Found, bool]:
        """What is found, and whether each name on the way is bound once."""
        self.touched.clear()
        found = follow()
        asked: Any = found.expression if isinstance(found, Given) else found
        text = " ".join(single(("", *asked) if isinstance(asked, tuple) else asked or ""))
        names = self.touched | set(_NAME.findall(text))
        return found, _GUESSED not in names and not any(self._is_rebound(one) for one in names)

    def _is_rebound(self, name: str) -> bool:
        many = self._bound[name]
        if name in self._annotations and not self._is_optional(name):
            many += bool(many)
        return many > 1

    def _is_optional(self, name: str) -> bool:
        default = self._defaults.get(name)
        return isinstance(default, ast.Constant) and default.value is None

    def _given(self, node: ast.expr) -> Given:
        text = ast.unparse(node)
        match node:
            case ast.Constant():
                return _known(node.value)
            case ast.Name():
                return self._name(node.id)
            case ast.Attribute(attr="dtype" | "device"):
                return Given()
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if name in ("torch", "tl"):
                value = self._module.names.get(name)
                return Given("constant", "", getattr(value, attr, None))
            case ast.Attribute(attr=attr):
                if attr in _SAME:
                    return self._given(node.value)
                return Given("unknown", text)
            case ast.Subscript(value=ast.Attribute(value=owner, attr="shape"), slice=place):
                sides = made.sides(self, owner)
                if sides and isinstance(index := _integer(place), int) and index < len(sides):
                    return self._given(sides[index])
                return Given("number", text)
            case ast.Subscript():
                inner = self._given(node.value)
                return inner if inner.kind == "tensor" else Given("unknown", text)
            case ast.Call():
                return self._call(node, text)
            case ast.BinOp():
                return self._binary(node)
            case ast.UnaryOp(op=ast.USub(), operand=inner_node):
                inner = self._given(inner_node)
                if isinstance(inner.value, (int, float)):
                    return Given("constant", -inner.value, -inner.value)  # type: ignore[arg-type]
                return inner
            case ast.UnaryOp() | ast.Compare() | ast.BoolOp():
                return Given("flag", text)
            case ast.IfExp(test=ast.Compare(ops=[ast.Is()])):
                return self._given(node.orelse)
            case ast.IfExp():
                self.touched.add(_GUESSED)
                chosen = self._given(node.body)
                return (
                    chosen
                    if chosen.is_known and chosen.value is not False
                    else self._given(node.orelse)
                )
        return Given("unknown", text)

    def _name(self, name: str) -> Given:
        if name in self.following:
            return Given("unknown", name)
        if name in self.assigned:
            self.following.add(name)
            self.touched.add(name)
            value, place = self.assigned[name]
            found = self._part(value, place) if place is not None else self._given(value)
            self.following.discard(name)
            if found.is_known or name not in self._annotations:
                return found if found.is_known else Given("unknown", name)
        if name in self._annotations:
            return self._parameter(name)
        value = self._module.names.get(name)
        if isinstance(value, (bool, int, float, str)):
            return _known(value)
        return Given("unknown", name)

    def _part(self, value: ast.expr, place: int) -> Given:
        """One of several names that are bound at once."""
        if isinstance(value, ast.Tuple) and place < len(value.elts):
            return self._given(value.elts[place])
        text = ast.unparse(value)
        if text.endswith((".shape", ".size()")):
            return Given(
                "number", f"{text.removesuffix('.size()').removesuffix('.shape')}.shape[{place}]"
            )
        if text.endswith(".stride()"):
            return Given("number", f"{text.removesuffix('()')}({place})")
        return Given()

    def _parameter(self, name: str) -> Given:
        note = self._annotations[name]
        if "Tensor" in note:
            return Given("tensor", name)
        if note.startswith(("int", "Optional[int")):
            return Given("number", name)
        if note.startswith(("bool", "float", "Optional[float")):
            return Given("flag" if note.startswith("bool") else "real", name)
        return Given("unknown", name)

    def _call(self, node: ast.Call, text: str) -> Given:
        name = ast.unparse(node.func).rpartition(".")[2]
        if name == "stride" and len(node.args) == 1 and isinstance(node.func, ast.Attribute):
            return made.stride(self, node.func.value, _integer(node.args[0])) or Given(
                "number", text
            )
        if name == "size" and len(node.args) == 1 and isinstance(node.func, ast.Attribute):
            owner = ast.Attribute(node.func.value, "shape", ast.Load())
            return self._given(ast.Subscript(owner, node.args[0], ast.Load()))
        if name in ("stride", "size", "numel", "dim") or name == "len":
            return Given("number", text)
        if name == "item":
            return Given("number", text)
        if name in _NEW:
            return Given("tensor", text, dtype=self._dtype(node))
        if name in ("to", "type") and isinstance(node.func, ast.Attribute):
            return Given("tensor", text, dtype=self._dtype(node))
        if name in _SAME and isinstance(node.func, ast.Attribute):
            root = ast.unparse(node.func.value)
            inner = (
                self._given(node.args[0])
                if root == "torch" and node.args
                else self._given(node.func.value)
            )
            return Given("tensor", inner.expression, dtype=self._dtype(node) or inner.dtype)
        if name == "int" and node.args:
            return self._given(node.args[0])
        if name in OPERATIONS and not node.keywords:
            parts = [self.number(argument) for argument in node.args]
            if None not in parts and (name not in ("min", "max") or len(parts) > 1):
                return self.folded(name, *parts)
        return Given("unknown", text)

    def _dtype(self, node: ast.Call) -> str:
        named = [one.value for one in node.keywords if one.arg == "dtype"]
        for one in (*named, *node.args):
            text = ast.unparse(one)
            if text.startswith("torch."):
                return text.removeprefix("torch.")
        return ""

    def _binary(self, node: ast.BinOp) -> Given:
        left, right = self.number(node.left), self.number(node.right)
        name = _SYMBOLS.get(type(node.op))
        if name is None or left is None or right is None:
            return Given("unknown", ast.unparse(node))
        return self.folded(name, left, right)

    def folded(self, name: str, *parts: Any) -> Given:
        if name == "*" and 1 in parts:
            rest = parts[0] if parts[1] == 1 else parts[1]
            return Given("constant" if isinstance(rest, int) else "number", rest, rest)
        if all(isinstance(part, int) for part in parts):
            value = OPERATIONS[name](*parts)
            return Given("constant", value, value)
        return Given("number", (name, *parts))

    def number(self, node: ast.expr) -> Expression | None:
        found = self._given(node)
        if found.kind in ("tensor", "flag", "real"):
            return None
        if found.kind == "constant" and not isinstance(found.expression, int):
            return None
        return found.expression if found.expression != "" else ast.unparse(node)

    # Grids

    def surely_grid(self, node: ast.expr) -> tuple[tuple[Expression, ...] | None, bool]:
        return self.surely(lambda: self.grid(node))

    def grid(self, node: ast.expr) -> tuple[Expression, ...] | None:
        if isinstance(node, ast.Name) and node.id in self.assigned:
            node = self.assigned[node.id][0]
        if isinstance(node, ast.Lambda):
            node = node.body
        if not isinstance(node, (ast.Tuple, ast.List)):
            return None
        sides = [self._side(side) for side in node.elts]
        return tuple(sides)

    def _side(self, node: ast.expr) -> Expression:
        found = self.number(node)
        return ast.unparse(node) if found is None else found


def _known(value: Any) -> Given:
    number = isinstance(value, int) and not isinstance(value, bool)
    return Given("constant", value if number else "", value)


def _integer(node: ast.expr) -> int | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if isinstance(value, int) else None


def _returned(node: ast.FunctionDef) -> ast.expr:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Return) and inner.value is not None:
            return inner.value
    return ast.Constant(None)
