"""The arguments of a launch as expressions, from the code of the function that launches.

A launch is `kernel[grid](arguments)`. Each argument becomes an expression over the words that the
function's caller knows: `q.stride(0)`, `x.shape[1]`, a parameter. Example: after
`tokens, heads = x.shape` and `rows = tokens * heads`, the argument `cdiv(rows, 64)` becomes
`("cdiv", ("*", "x.shape[0]", "x.shape[1]"), 64)`.

Invariant: `is_certain` is true only if every name on the way is bound once, so that the expression
is the same in every call.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from harness.runs.audit import tensor_shapes
from harness.runs.audit.expressions import OPERATIONS, Expression, iterate_words
from harness.runs.audit.host_values import (
    CONVERSIONS,
    SAME_TENSOR,
    TENSOR_MAKERS,
    HostValue,
    ResultT,
)
from harness.runs.audit.lazy_release import LazyModule
from harness.runs.audit.preconditions import to_test_expression

_OPERATOR_SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}
_NAME = re.compile(r"[A-Za-z_]\w*")
_KINDS_BY_ANNOTATION = {
    "number": ("int", "Optional[int"),
    "flag": ("bool",),
    "real": ("float", "Optional[float"),
}
_GUESSED_BRANCH = "?"  # a branch that was chosen as the likelier one


@dataclass(frozen=True, slots=True)
class HostLaunch:
    """One place that launches a kernel."""

    file: str
    line: int
    function: str
    arguments: dict[str | int, HostValue] = field(default_factory=dict)
    grid: tuple[Expression, ...] | None = None
    is_grid_certain: bool = True
    preconditions: tuple[Expression, ...] = ()  # tests that hold where the function launches
    tensor_ranks: dict[str, int] = field(default_factory=dict)  # ranks of unpacked tensors
    side_names: dict[str, str] = field(default_factory=dict)  # such as `tokens` for `x.shape[0]`


class HostScope:
    """The names of a function just before a line."""

    def __init__(self, module: LazyModule, scope: ast.FunctionDef | None, line: int) -> None:
        self._module = module
        self._annotations: dict[str, str] = {}
        self._defaults: dict[str, ast.expr] = {}
        self.assignments: dict[str, tuple[ast.expr, int | None]] = {}
        self.names_in_progress: set[str] = set()
        self.followed_names: set[str] = set()
        self._binding_counts: Counter[str] = Counter()
        self.tensor_ranks: dict[str, int] = {}
        self.side_names: dict[str, str] = {}
        if scope is None:
            return
        parameters = scope.args
        for each in (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs):
            self._annotations[each.arg] = ast.unparse(each.annotation) if each.annotation else ""
        self._defaults = map_defaults(scope)
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign) and node.lineno < line:
                for target in node.targets:
                    self._assign(target, node.value)
            elif isinstance(node, ast.AnnAssign) and node.value and node.lineno < line:
                self._assign(node.target, node.value)
            elif isinstance(node, (ast.AugAssign, ast.For, ast.NamedExpr)) and node.lineno < line:
                self._binding_counts.update(2 * _list_names(node.target))
            elif isinstance(node, ast.FunctionDef) and node is not scope:
                self.assignments[node.name] = (ast.Lambda(node.args, _find_returned(node)), None)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        match target, value:
            case ast.Name(id=name), ast.Call(
                func=ast.Attribute(value=ast.Name(id=other), attr=attr)
            ):
                if name == other and attr in CONVERSIONS:
                    return
        self._binding_counts.update(_list_names(target))
        if isinstance(target, ast.Name):
            self.assignments[target.id] = (value, None)
            if isinstance(value, ast.Subscript):
                self.side_names.setdefault(ast.unparse(value), target.id)
        elif isinstance(target, ast.Tuple):
            match value:
                case (
                    ast.Attribute(value=ast.Name(id=whole), attr="shape")
                    | ast.Call(func=ast.Attribute(value=ast.Name(id=whole), attr="size"), args=[])
                ) if not any(isinstance(each, ast.Starred) for each in target.elts):
                    self.tensor_ranks[whole] = len(target.elts)
                    for side, each in enumerate(target.elts):
                        if isinstance(each, ast.Name):
                            self.side_names.setdefault(f"{whole}.shape[{side}]", each.id)
            for position, each in enumerate(target.elts):
                if isinstance(each, ast.Name):
                    self.assignments[each.id] = (value, position)

    # Values

    def evaluate(self, node: ast.expr) -> HostValue:
        try:
            return self._evaluate(node)
        except RecursionError:
            return HostValue()

    def evaluate_argument(self, node: ast.expr) -> HostValue:
        """Evaluate an argument with its element count or test, and whether that is certain."""
        value, is_certain = self.evaluate_with_certainty(lambda: self.evaluate(node))
        if value.kind == "tensor":
            count, is_fixed = self.evaluate_with_certainty(
                lambda: tensor_shapes.count_elements(self, node)
            )
            count = count if is_fixed else None
            return replace(value, element_count=count, is_certain=is_certain)
        if value.kind == "flag":
            test, is_certain = self.evaluate_with_certainty(lambda: to_test_expression(self, node))
            return replace(value, test=test, is_certain=is_certain)
        opaque = not value.is_known and isinstance(node, ast.Name) and node.id in self.assignments
        return replace(value, is_certain=is_certain and not opaque)

    def evaluate_with_certainty(self, evaluation: Callable[[], ResultT]) -> tuple[ResultT, bool]:
        """Evaluate, and return whether each name on the way is bound once."""
        self.followed_names.clear()
        result = evaluation()
        words: Any = result.expression if isinstance(result, HostValue) else result
        text = " ".join(iterate_words(("", *words) if isinstance(words, tuple) else words or ""))
        names = self.followed_names | set(_NAME.findall(text))
        return result, _GUESSED_BRANCH not in names and not any(map(self._is_rebound, names))

    def _is_rebound(self, name: str) -> bool:
        """Return whether a name is bound twice; a parameter is bound by the call already."""
        count = self._binding_counts[name]
        if name in self._annotations and not self._is_optional(name):
            count += bool(count)
        return count > 1

    def _is_optional(self, name: str) -> bool:
        default = self._defaults.get(name)
        return isinstance(default, ast.Constant) and default.value is None

    def _evaluate(self, node: ast.expr) -> HostValue:
        text = ast.unparse(node)
        match node:
            case ast.Constant():
                return _make_constant(node.value)
            case ast.Name():
                return self._evaluate_name(node.id)
            case ast.Attribute(attr="dtype" | "device"):
                return HostValue()
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if name in ("torch", "tl"):
                value = self._module.names.get(name)
                return HostValue("constant", "", getattr(value, attr, None))
            case ast.Attribute(attr=attr):
                if attr in SAME_TENSOR:
                    return self._evaluate(node.value)
                return HostValue("unknown", text)
            case ast.Subscript(value=ast.Attribute(value=owner, attr="shape"), slice=position):
                sides = tensor_shapes.find_sides(self, owner)
                index = _parse_integer(position) if sides else None
                if index is not None and index < len(sides):
                    return self._evaluate(sides[index])
                return HostValue("number", text)
            case ast.Subscript():
                inner = self._evaluate(node.value)
                return inner if inner.kind == "tensor" else HostValue("unknown", text)
            case ast.Call():
                return self._evaluate_call(node, text)
            case ast.BinOp():
                return self._evaluate_binary(node)
            case ast.UnaryOp(op=ast.USub(), operand=inner_node):
                inner = self._evaluate(inner_node)
                if isinstance(inner.value, (int, float)):
                    return HostValue("constant", -inner.value, -inner.value)  # type: ignore[arg-type]
                return inner
            case ast.UnaryOp() | ast.Compare() | ast.BoolOp():
                return HostValue("flag", text)
            case ast.IfExp(test=ast.Compare(ops=[ast.Is()])):
                return self._evaluate(node.orelse)
            case ast.IfExp():
                self.followed_names.add(_GUESSED_BRANCH)
                chosen = self._evaluate(node.body)
                is_usable = chosen.is_known and chosen.value is not False
                return chosen if is_usable else self._evaluate(node.orelse)
        return HostValue("unknown", text)

    def _evaluate_name(self, name: str) -> HostValue:
        if name in self.names_in_progress:
            return HostValue("unknown", name)
        if name in self.assignments:
            self.names_in_progress.add(name)
            self.followed_names.add(name)
            node, position = self.assignments[name]
            if position is None:
                assigned = self._evaluate(node)
            else:
                assigned = self._evaluate_unpacked(node, position)
            self.names_in_progress.discard(name)
            if assigned.is_known:
                return assigned
            if name not in self._annotations:
                return HostValue("unknown", name)
        if name in self._annotations:
            return self._evaluate_parameter(name)
        value = self._module.names.get(name)
        if isinstance(value, (bool, int, float, str)):
            return _make_constant(value)
        return HostValue("unknown", name)

    def _evaluate_unpacked(self, value: ast.expr, position: int) -> HostValue:
        """Evaluate one of several names that one assignment binds."""
        if isinstance(value, ast.Tuple) and position < len(value.elts):
            return self._evaluate(value.elts[position])
        text = ast.unparse(value)
        if text.endswith((".shape", ".size()")):
            owner = text.removesuffix(".size()").removesuffix(".shape")
            return HostValue("number", f"{owner}.shape[{position}]")
        if text.endswith(".stride()"):
            return HostValue("number", f"{text.removesuffix('()')}({position})")
        return HostValue()

    def _evaluate_parameter(self, name: str) -> HostValue:
        annotation = self._annotations[name]
        if "Tensor" in annotation:
            return HostValue("tensor", name)
        for kind, prefixes in _KINDS_BY_ANNOTATION.items():
            if annotation.startswith(prefixes):
                return HostValue(kind, name)
        return HostValue("unknown", name)

    def _evaluate_call(self, node: ast.Call, text: str) -> HostValue:
        name = ast.unparse(node.func).rpartition(".")[2]
        if name == "stride" and len(node.args) == 1 and isinstance(node.func, ast.Attribute):
            return tensor_shapes.compute_stride(
                self, node.func.value, _parse_integer(node.args[0])
            ) or HostValue("number", text)
        if name == "size" and len(node.args) == 1 and isinstance(node.func, ast.Attribute):
            owner = ast.Attribute(node.func.value, "shape", ast.Load())
            return self._evaluate(ast.Subscript(owner, node.args[0], ast.Load()))
        if name in ("stride", "size", "numel", "dim", "len", "item"):
            return HostValue("number", text)
        if name in TENSOR_MAKERS:
            return HostValue("tensor", text, dtype=self._find_dtype(node))
        if name in ("to", "type") and isinstance(node.func, ast.Attribute):
            return HostValue("tensor", text, dtype=self._find_dtype(node))
        if name in SAME_TENSOR and isinstance(node.func, ast.Attribute):
            is_function = ast.unparse(node.func.value) == "torch" and node.args
            inner = self._evaluate(node.args[0] if is_function else node.func.value)
            dtype = self._find_dtype(node) or inner.dtype
            return HostValue("tensor", inner.expression, dtype=dtype)
        if name == "int" and node.args:
            return self._evaluate(node.args[0])
        if name in OPERATIONS and not node.keywords:
            parts = [self.to_number(argument) for argument in node.args]
            if None not in parts and (name not in ("min", "max") or len(parts) > 1):
                return self.fold(name, *parts)
        return HostValue("unknown", text)

    def _find_dtype(self, node: ast.Call) -> str:
        named = [keyword.value for keyword in node.keywords if keyword.arg == "dtype"]
        for argument in (*named, *node.args):
            text = ast.unparse(argument)
            if text.startswith("torch."):
                return text.removeprefix("torch.")
        return ""

    def _evaluate_binary(self, node: ast.BinOp) -> HostValue:
        left, right = self.to_number(node.left), self.to_number(node.right)
        name = _OPERATOR_SIGNS.get(type(node.op))
        if name is None or left is None or right is None:
            return HostValue("unknown", ast.unparse(node))
        return self.fold(name, left, right)

    def fold(self, name: str, *parts: Any) -> HostValue:
        if name == "*" and 1 in parts:
            rest = parts[0] if parts[1] == 1 else parts[1]
            return HostValue("constant" if isinstance(rest, int) else "number", rest, rest)
        if all(isinstance(part, int) for part in parts):
            value = OPERATIONS[name](*parts)
            return HostValue("constant", value, value)
        return HostValue("number", (name, *parts))

    def to_number(self, node: ast.expr) -> Expression | None:
        value = self._evaluate(node)
        if value.kind in ("tensor", "flag", "real"):
            return None
        if value.kind == "constant" and not isinstance(value.expression, int):
            return None
        return value.expression if value.expression != "" else ast.unparse(node)

    # Grids

    def parse_grid(self, node: ast.expr) -> tuple[Expression, ...] | None:
        if isinstance(node, ast.Name) and node.id in self.assignments:
            node = self.assignments[node.id][0]
        if isinstance(node, ast.Lambda):
            node = node.body
        if not isinstance(node, (ast.Tuple, ast.List)):
            return None
        return tuple(map(self._parse_side, node.elts))

    def _parse_side(self, node: ast.expr) -> Expression:
        number = self.to_number(node)
        return ast.unparse(node) if number is None else number


def map_defaults(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """Map each parameter with a default to that default."""
    parameters, defaults = function.args.args, function.args.defaults
    with_default = parameters[len(parameters) - len(defaults) :]
    return {each.arg: value for each, value in zip(with_default, defaults, strict=True)}


def _list_names(node: ast.expr) -> list[str]:
    return [inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)]


def _make_constant(value: Any) -> HostValue:
    number = isinstance(value, int) and not isinstance(value, bool)
    return HostValue("constant", value if number else "", value)


def _parse_integer(node: ast.expr) -> int | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if isinstance(value, int) else None


def _find_returned(node: ast.FunctionDef) -> ast.expr:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Return) and inner.value is not None:
            return inner.value
    return ast.Constant(None)
