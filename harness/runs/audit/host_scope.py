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

from harness.runs.audit import tensor_shapes
from harness.runs.audit.expressions import OPERATIONS, Expression, iterate_words
from harness.runs.audit.host_values import FollowedT, HostValue
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
_GUESSED_BRANCH = "?"  # a branch that was taken for the likelier one
_TENSOR_MAKERS = frozenset(
    "empty zeros ones full arange tensor as_tensor empty_strided "
    "new_empty new_zeros new_ones new_full".split()
)
_SIZE_PRESERVING = frozenset("contiguous to cuda clone detach float half bfloat16 int long".split())
_SAME_TENSOR = frozenset(
    "contiguous view reshape clone flatten squeeze unsqueeze transpose t permute narrow expand "
    "detach cuda empty_like zeros_like ones_like full_like unflatten view_as T mT data".split()
)


@dataclass(frozen=True, slots=True)
class HostLaunch:
    """One place that launches a kernel."""

    file: str
    line: int
    function: str
    arguments: dict[str | int, HostValue] = field(default_factory=dict)
    grid: tuple[Expression, ...] | None = None
    is_grid_certain: bool = True  # of the grid
    preconditions: tuple[Expression, ...] = ()  # what the function asks before it launches
    tensor_ranks: dict[str, int] = field(
        default_factory=dict
    )  # of tensors whose shape it takes apart
    side_names: dict[str, str] = field(default_factory=dict)  # by a side of a tensor its name there


class HostScope:
    """A function's names just before a line."""

    def __init__(self, module: LazyModule, scope: ast.FunctionDef | None, line: int) -> None:
        self._module, self._line = module, line
        self._annotations: dict[str, str] = {}
        self._defaults: dict[str, ast.expr] = {}
        self.assignments: dict[str, tuple[ast.expr, int | None]] = {}
        self.names_in_progress: set[str] = set()
        self.followed_names: set[str] = set()  # names that were followed
        self._binding_counts: Counter[str] = Counter()  # how often each name is
        self.tensor_ranks: dict[str, int] = {}
        self.side_names: dict[str, str] = {}
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
                self._binding_counts.update(
                    2 * [one.id for one in ast.walk(node.target) if isinstance(one, ast.Name)]
                )
            elif isinstance(node, ast.FunctionDef) and node is not scope:
                self.assignments[node.name] = (ast.Lambda(node.args, _find_returned(node)), None)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        match target, value:
            case ast.Name(id=name), ast.Call(
                func=ast.Attribute(value=ast.Name(id=other), attr=attr)
            ):
                if name == other and attr in _SIZE_PRESERVING:
                    return
        self._binding_counts.update(one.id for one in ast.walk(target) if isinstance(one, ast.Name))
        if isinstance(target, ast.Name):
            self.assignments[target.id] = (value, None)
            if isinstance(value, ast.Subscript):
                self.side_names.setdefault(ast.unparse(value), target.id)
        elif isinstance(target, ast.Tuple):
            match value:
                case (
                    ast.Attribute(value=ast.Name(id=whole), attr="shape")
                    | ast.Call(func=ast.Attribute(value=ast.Name(id=whole), attr="size"), args=[])
                ) if not any(isinstance(one, ast.Starred) for one in target.elts):
                    self.tensor_ranks[whole] = len(target.elts)
                    for place, one in enumerate(target.elts):
                        if isinstance(one, ast.Name):
                            self.side_names.setdefault(f"{whole}.shape[{place}]", one.id)
            for place, one in enumerate(target.elts):
                if isinstance(one, ast.Name):
                    self.assignments[one.id] = (value, place)

    # Values

    def evaluate(self, node: ast.expr) -> HostValue:
        try:
            return self._evaluate(node)
        except RecursionError:
            return HostValue()

    def evaluate_argument(self, node: ast.expr) -> HostValue:
        """With what a launch needs to be made again, and no more than the code says."""
        found, sure = self.evaluate_with_certainty(lambda: self.evaluate(node))
        if found.kind == "tensor":
            many, known = self.evaluate_with_certainty(
                lambda: tensor_shapes.count_elements(self, node)
            )
            return replace(found, element_count=many if known else None, is_certain=sure)
        if found.kind == "flag":
            asked, sure = self.evaluate_with_certainty(lambda: to_test_expression(self, node))
            return replace(found, test=asked, is_certain=sure)
        computed = not found.is_known and isinstance(node, ast.Name) and node.id in self.assignments
        return replace(found, is_certain=sure and not computed)

    def evaluate_with_certainty(
        self, evaluation: Callable[[], FollowedT]
    ) -> tuple[FollowedT, bool]:
        """What is found, and whether each name on the way is bound once."""
        self.followed_names.clear()
        found = evaluation()
        asked: Any = found.expression if isinstance(found, HostValue) else found
        text = " ".join(iterate_words(("", *asked) if isinstance(asked, tuple) else asked or ""))
        names = self.followed_names | set(_NAME.findall(text))
        return found, _GUESSED_BRANCH not in names and not any(
            self._is_rebound(one) for one in names
        )

    def _is_rebound(self, name: str) -> bool:
        many = self._binding_counts[name]
        if name in self._annotations and not self._is_optional(name):
            many += bool(many)
        return many > 1

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
                if attr in _SAME_TENSOR:
                    return self._evaluate(node.value)
                return HostValue("unknown", text)
            case ast.Subscript(value=ast.Attribute(value=owner, attr="shape"), slice=place):
                sides = tensor_shapes.find_sides(self, owner)
                if sides and isinstance(index := _parse_integer(place), int) and index < len(sides):
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
                return (
                    chosen
                    if chosen.is_known and chosen.value is not False
                    else self._evaluate(node.orelse)
                )
        return HostValue("unknown", text)

    def _evaluate_name(self, name: str) -> HostValue:
        if name in self.names_in_progress:
            return HostValue("unknown", name)
        if name in self.assignments:
            self.names_in_progress.add(name)
            self.followed_names.add(name)
            value, place = self.assignments[name]
            found = (
                self._evaluate_unpacked(value, place)
                if place is not None
                else self._evaluate(value)
            )
            self.names_in_progress.discard(name)
            if found.is_known or name not in self._annotations:
                return found if found.is_known else HostValue("unknown", name)
        if name in self._annotations:
            return self._evaluate_parameter(name)
        value = self._module.names.get(name)
        if isinstance(value, (bool, int, float, str)):
            return _make_constant(value)
        return HostValue("unknown", name)

    def _evaluate_unpacked(self, value: ast.expr, position: int) -> HostValue:
        """One of several names that are bound at once."""
        if isinstance(value, ast.Tuple) and position < len(value.elts):
            return self._evaluate(value.elts[position])
        text = ast.unparse(value)
        if text.endswith((".shape", ".size()")):
            return HostValue(
                "number", f"{text.removesuffix('.size()').removesuffix('.shape')}.shape[{position}]"
            )
        if text.endswith(".stride()"):
            return HostValue("number", f"{text.removesuffix('()')}({position})")
        return HostValue()

    def _evaluate_parameter(self, name: str) -> HostValue:
        note = self._annotations[name]
        if "Tensor" in note:
            return HostValue("tensor", name)
        if note.startswith(("int", "Optional[int")):
            return HostValue("number", name)
        if note.startswith(("bool", "float", "Optional[float")):
            return HostValue("flag" if note.startswith("bool") else "real", name)
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
        if name in ("stride", "size", "numel", "dim") or name == "len":
            return HostValue("number", text)
        if name == "item":
            return HostValue("number", text)
        if name in _TENSOR_MAKERS:
            return HostValue("tensor", text, dtype=self._find_dtype(node))
        if name in ("to", "type") and isinstance(node.func, ast.Attribute):
            return HostValue("tensor", text, dtype=self._find_dtype(node))
        if name in _SAME_TENSOR and isinstance(node.func, ast.Attribute):
            root = ast.unparse(node.func.value)
            inner = (
                self._evaluate(node.args[0])
                if root == "torch" and node.args
                else self._evaluate(node.func.value)
            )
            return HostValue(
                "tensor", inner.expression, dtype=self._find_dtype(node) or inner.dtype
            )
        if name == "int" and node.args:
            return self._evaluate(node.args[0])
        if name in OPERATIONS and not node.keywords:
            parts = [self.to_number(argument) for argument in node.args]
            if None not in parts and (name not in ("min", "max") or len(parts) > 1):
                return self.fold(name, *parts)
        return HostValue("unknown", text)

    def _find_dtype(self, node: ast.Call) -> str:
        named = [one.value for one in node.keywords if one.arg == "dtype"]
        for one in (*named, *node.args):
            text = ast.unparse(one)
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
        found = self._evaluate(node)
        if found.kind in ("tensor", "flag", "real"):
            return None
        if found.kind == "constant" and not isinstance(found.expression, int):
            return None
        return found.expression if found.expression != "" else ast.unparse(node)

    # Grids

    def parse_grid_with_certainty(
        self, node: ast.expr
    ) -> tuple[tuple[Expression, ...] | None, bool]:
        return self.evaluate_with_certainty(lambda: self.parse_grid(node))

    def parse_grid(self, node: ast.expr) -> tuple[Expression, ...] | None:
        if isinstance(node, ast.Name) and node.id in self.assignments:
            node = self.assignments[node.id][0]
        if isinstance(node, ast.Lambda):
            node = node.body
        if not isinstance(node, (ast.Tuple, ast.List)):
            return None
        sides = [self._parse_side(side) for side in node.elts]
        return tuple(sides)

    def _parse_side(self, node: ast.expr) -> Expression:
        found = self.to_number(node)
        return ast.unparse(node) if found is None else found


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
