"""What the host gives a kernel, read off the code that launches it.

A launch is `kernel[grid](arguments)` in some function. Each argument becomes an expression over
what the caller can see: `q.stride(0)`, `x.shape[1]`, a parameter; sums, products and roundings of
these are followed, back through the function's own assignments.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from harness.audit.loading import Module, called

# An expression: a number, the words of a caller, or an operation on expressions.
Expression = int | str | tuple[Any, ...]

_OPERATIONS: dict[str, Callable[..., int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b if b else 0,
    "%": lambda a, b: a % b if b else 0,
    "cdiv": lambda a, b: -(-a // b) if b else 0,
    "next_power_of_2": lambda a: 1 << max(0, a - 1).bit_length(),
    "min": min,
    "max": max,
}
_SYMBOLS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}
_ROWS = re.compile(r"(\w+)\.shape\[0\] \* \1\.shape\[1\]$")
_NEW = frozenset("empty zeros ones full arange tensor as_tensor empty_strided".split())
_SAME = frozenset(
    "contiguous view reshape clone flatten squeeze unsqueeze transpose t permute narrow expand "
    "detach cuda empty_like zeros_like ones_like full_like unflatten view_as T mT data".split()
)


@dataclass(frozen=True, slots=True)
class Given:
    """One argument of one launch: what it is, as far as the host's code says it."""

    kind: str = "unknown"  # tensor, number, constant, unknown
    expression: Expression = ""
    value: Any = None  # of a constant
    dtype: str = ""  # of a tensor, as torch calls it

    @property
    def is_known(self) -> bool:
        return self.kind != "unknown"


@dataclass(frozen=True, slots=True)
class Launch:
    """One place that launches a kernel."""

    file: str
    line: int
    function: str
    arguments: dict[str | int, Given] = field(default_factory=dict)
    grid: tuple[Expression, ...] | None = None


def evaluated(expression: Expression, value_of: Callable[[str], int]) -> int:
    if isinstance(expression, int):
        return expression
    if isinstance(expression, str) or _are_rows(expression):
        return value_of(words(expression))
    name, *parts = expression
    return _OPERATIONS[name](*(evaluated(part, value_of) for part in parts))


@cache
def _are_rows(expression: tuple[Any, ...]) -> bool:
    """The first sides of one tensor, multiplied: how many rows it has."""
    return _ROWS.match(words(expression)) is not None


def symbols(expression: Expression) -> Iterator[str]:
    if isinstance(expression, str) or (isinstance(expression, tuple) and _are_rows(expression)):
        yield words(expression)
    elif isinstance(expression, tuple):
        for part in expression[1:]:
            yield from symbols(part)


def words(expression: Expression) -> str:
    """As the caller would write it."""
    if not isinstance(expression, tuple):
        return str(expression)
    name, *parts = expression
    inner = [words(part) for part in parts]
    return f" {name} ".join(inner) if name in "+-*//%" else f"{name}({', '.join(inner)})"


def launches(module: Module, kernels: Collection[str]) -> Iterator[tuple[str, Launch]]:
    """Each launch in a module of a kernel of these names."""
    for scope, call in _calls(module.code, None):
        assert isinstance(call.func, ast.Subscript)
        target: ast.expr = call.func.value
        while isinstance(target, ast.Call) and target.args:
            target = target.args[0]
        name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
        if name not in kernels:
            continue
        host = Host(module, scope, call.lineno)
        arguments: dict[str | int, Given] = {}
        for place, argument in enumerate(call.args):
            if isinstance(argument, ast.Starred):
                break
            arguments[place] = host.given(argument)
        arguments |= {one.arg: host.given(one.value) for one in call.keywords if one.arg}
        where = scope.name if scope is not None else "the module"
        yield name, Launch(module.path, call.lineno, where, arguments, host.grid(call.func.slice))


def _calls(
    node: ast.AST, scope: ast.FunctionDef | None
) -> Iterator[tuple[ast.FunctionDef | None, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Subscript):
            yield scope, child
        inner = child if isinstance(child, ast.FunctionDef) else scope
        yield from _calls(child, inner)


class Host:
    """A function's names just before a line."""

    def __init__(self, module: Module, scope: ast.FunctionDef | None, line: int) -> None:
        self._module, self._line = module, line
        self._annotations: dict[str, str] = {}
        self._defaults: dict[str, ast.expr] = {}
        self._assigned: dict[str, tuple[ast.expr, int | None]] = {}
        self._following: set[str] = set()
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
            elif isinstance(node, ast.FunctionDef) and node is not scope:
                self._assigned[node.name] = (ast.Lambda(node.args, _returned(node)), None)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._assigned[target.id] = (value, None)
        elif isinstance(target, ast.Tuple):
            for place, one in enumerate(target.elts):
                if isinstance(one, ast.Name):
                    self._assigned[one.id] = (value, place)

    # Values

    def given(self, node: ast.expr) -> Given:
        try:
            return self._given(node)
        except RecursionError:
            return Given()

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
                sides = self._sides(owner)
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
                chosen = self._given(node.body)
                return (
                    chosen
                    if chosen.is_known and chosen.value is not False
                    else self._given(node.orelse)
                )
        return Given("unknown", text)

    def _name(self, name: str) -> Given:
        if name in self._following:
            return Given("unknown", name)
        if name in self._assigned:
            self._following.add(name)
            value, place = self._assigned[name]
            found = self._part(value, place) if place is not None else self._given(value)
            self._following.discard(name)
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
            return self._stride(node.func.value, _integer(node.args[0])) or Given("number", text)
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
        if name in _OPERATIONS and not node.keywords:
            parts = [self._number(argument) for argument in node.args]
            if None not in parts and (name not in ("min", "max") or len(parts) > 1):
                return self._folded(name, *parts)
        return Given("unknown", text)

    def _sides(self, node: ast.expr) -> list[ast.expr]:
        """The shape of a tensor that this function makes."""
        if not isinstance(node, ast.Name) or node.id not in self._assigned:
            return []
        made, place = self._assigned[node.id]
        if place is not None or not isinstance(made, ast.Call):
            return []
        if ast.unparse(made.func).rpartition(".")[2] not in ("empty", "zeros", "ones", "full"):
            return []
        if made.args and isinstance(made.args[0], (ast.Tuple, ast.List)):
            return made.args[0].elts
        sizes = [one.value for one in made.keywords if one.arg == "size"]
        if sizes and isinstance(sizes[0], (ast.Tuple, ast.List)):
            return sizes[0].elts
        return list(made.args)

    def _stride(self, node: ast.expr, place: int | None) -> Given | None:
        sides = self._sides(node)
        if not sides or place is None or not -len(sides) <= place < len(sides):
            return None
        if any(isinstance(side, ast.Starred) for side in sides):
            return None
        found = Given("constant", 1, 1)
        for side in sides[place % len(sides) + 1 :]:
            number = self._number(side)
            if number is None:
                return None
            found = self._folded("*", found.expression, number)
        return found

    def _dtype(self, node: ast.Call) -> str:
        named = [one.value for one in node.keywords if one.arg == "dtype"]
        for one in (*named, *node.args):
            text = ast.unparse(one)
            if text.startswith("torch."):
                return text.removeprefix("torch.")
        return ""

    def _binary(self, node: ast.BinOp) -> Given:
        left, right = self._number(node.left), self._number(node.right)
        name = _SYMBOLS.get(type(node.op))
        if name is None or left is None or right is None:
            return Given("unknown", ast.unparse(node))
        return self._folded(name, left, right)

    def _folded(self, name: str, *parts: Any) -> Given:
        if name == "*" and 1 in parts:
            rest = parts[0] if parts[1] == 1 else parts[1]
            return Given("constant" if isinstance(rest, int) else "number", rest, rest)
        if all(isinstance(part, int) for part in parts):
            value = _OPERATIONS[name](*parts)
            return Given("constant", value, value)
        return Given("number", (name, *parts))

    def _number(self, node: ast.expr) -> Expression | None:
        found = self._given(node)
        if found.kind in ("tensor", "flag", "real"):
            return None
        if found.kind == "constant" and not isinstance(found.expression, int):
            return None
        return found.expression if found.expression != "" else ast.unparse(node)

    # Grids

    def grid(self, node: ast.expr) -> tuple[Expression, ...] | None:
        if isinstance(node, ast.Name) and node.id in self._assigned:
            node = self._assigned[node.id][0]
        if isinstance(node, ast.Lambda):
            node = node.body
        if not isinstance(node, (ast.Tuple, ast.List)):
            return None
        sides = [self._side(side) for side in node.elts]
        return tuple(sides)

    def _side(self, node: ast.expr) -> Expression:
        found = self._number(node)
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


def configured(node: ast.FunctionDef) -> dict[str, Any]:
    """The constants of a tuner's first configuration."""
    for decorator in node.decorator_list:
        for inner in ast.walk(decorator):
            if (
                isinstance(inner, ast.Call)
                and ast.unparse(called(inner)).endswith("Config")
                and inner.args
                and isinstance(inner.args[0], ast.Dict)
            ):
                pairs = zip(inner.args[0].keys, inner.args[0].values, strict=True)
                return {
                    str(key.value): value.value
                    for key, value in pairs
                    if isinstance(key, ast.Constant) and isinstance(value, ast.Constant)
                }
    return {}
