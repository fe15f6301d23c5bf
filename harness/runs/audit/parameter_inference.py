"""The type of each parameter of a kernel, or the constant that it is compiled for.

The host's code decides first, then how the kernel uses the parameter, then its name. Example: of
`kernel[grid](x, indices, n=x.shape[0])` the host gives the expression of `n`; the kernel loads from
`indices` and adds the result to an address, so it is a pointer to `i32`; `x` is a pointer to
`bf16`, as its name suggests no other type.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import triton.language as tl

from harness.runs.audit.expressions import (
    Expression,
    evaluate_expression,
    has_several_symbols,
    iterate_symbols,
)
from harness.runs.audit.host_scope import HostLaunch
from harness.runs.audit.host_values import HostValue
from harness.runs.audit.launch_sites import read_tuner_constants
from harness.runs.audit.lazy_release import LazyModule
from harness.runs.audit.parameter_uses import find_parameter_uses
from harness.runs.audit.size_limits import SizeLimits, SizeQuantity
from harness.sanitizer.triton.recorded_launches import CONSTEXPR, LaunchMode, constant_from_json

_FLAG_WORDS = (
    "HAS",
    "IS",
    "USE",
    "ENABLE",
    "DO",
    "APPLY",
    "WITH",
    "RETURN",
    "SAVE",
    "STORE",
    "NEED",
)
_TRITON_TYPES = {
    "int32": "i32", "int64": "i64", "int": "i32", "long": "i64", "int16": "i16", "int8": "i8",
    "uint8": "u8", "uint32": "u32", "uint64": "u64", "bool": "i1",
    "float32": "fp32", "float": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64",
    "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
}  # fmt: skip
_FLOAT_WORDS = frozenset(
    "scale scales eps alpha beta theta cap softcap temperature inv factor threshold freq penalty "
    "prob rcp limit max_value min_value".split()
)
_INTEGER_NAME = re.compile(r"stride|bytes|offset|_cap$")  # an integer, wherever the name has it
_REAL_CONTENT_WORDS = ("scale", "weight", "value", "score", "logit", "prob")  # of tensors
_FP32_WORDS = ("scale", "lse", "max", "sum", "logit", "temperature", "prob", "bias")  # of tensors
_SHORT_TYPES = ("i8", "u8", "i16", "fp8e4nv")  # too short for a count
SOURCE_UNUSED = "its host alone"  # the host gives a tensor that the kernel does not access
SOURCE_RECORDED_LAUNCH = "a launch that was made"
SOURCE_DESCRIPTIONS = {  # sources of a constant, in reports
    "host": "the code that launches it", "name": "by its name", "both": "tried both ways",
    "absent": "an argument that is not there", "default": "its default",
}  # fmt: skip
# With a constant of these sources only a part of the kernel is read:
SOURCE_ONE_WORD, SOURCE_FEW_ITERATIONS = "one of its words", "a few turns"
_INT64_FROM = 2**31


@dataclass(frozen=True, slots=True)
class AssumedParameter:
    """One parameter: its type or constant, and its argument at the call."""

    name: str
    kind: str  # as Triton writes it; "constexpr" for a constant
    value: Any = None
    expression: Expression = ""  # a number, in the caller's words
    source: str = ""  # the source of the kind or value: the host, the kernel, a name
    host_value: HostValue = field(default=HostValue(), compare=False, repr=False)

    @property
    def is_pointer(self) -> bool:
        return self.kind.startswith("*")


def describe_unread_constants(assumed_parameters: Sequence[AssumedParameter]) -> set[str]:
    """Name the constants with which only a part of the kernel is read: the rest may overflow."""
    return {
        f"it is read with {parameter.name} = {parameter.value!r} alone"
        for parameter in assumed_parameters
        if parameter.source in (SOURCE_ONE_WORD, SOURCE_FEW_ITERATIONS)
    }


def infer_parameters(
    module: LazyModule,
    node: ast.FunctionDef,
    launch: HostLaunch | None,
    limits: SizeLimits,
    flags: bool | None,
) -> list[AssumedParameter]:
    """Infer all parameters of a kernel; `flags` is the value of flags that the host leaves open."""
    return _ParameterInference(module, node, launch, limits, flags).infer_all()


class _ParameterInference:
    """The inference for one kernel and one place that launches it."""

    def __init__(
        self,
        module: LazyModule,
        node: ast.FunctionDef,
        launch: HostLaunch | None,
        limits: SizeLimits,
        flags: bool | None,
    ) -> None:
        self._module, self._launch, self._limits, self._flags = module, launch, limits, flags
        self._arguments = [*node.args.args, *node.args.kwonlyargs]
        self._uses = find_parameter_uses(module, node)
        self._tuner_constants = read_tuner_constants(node)
        self._side_names = launch.side_names if launch is not None else {}
        with_default = node.args.args[len(node.args.args) - len(node.args.defaults) :]
        self._defaults = {
            argument.arg: default
            for argument, default in zip(with_default, node.args.defaults, strict=True)
        }
        # By expression: the parameter that receives it, so that the expression is its number.
        self._parameter_by_expression = {
            value.expression: argument.arg
            for position, argument in enumerate(self._arguments)
            if (value := self._get_host_value(position, argument.arg)).kind == "number"
            and isinstance(value.expression, str)
        }

    def _get_host_value(self, position: int, name: str) -> HostValue:
        arguments = self._launch.arguments if self._launch is not None else {}
        return arguments.get(name) or arguments.get(position) or HostValue()

    def infer_all(self) -> list[AssumedParameter]:
        parameters = []
        for position, argument in enumerate(self._arguments):
            host_value = self._get_host_value(position, argument.arg)
            parameters.append(replace(self._infer(argument, host_value), host_value=host_value))
        return parameters

    def _infer(self, argument: ast.arg, host_value: HostValue) -> AssumedParameter:
        name = argument.arg
        annotation = ast.unparse(argument.annotation) if argument.annotation else ""
        is_constexpr = "constexpr" in annotation
        if self._is_absent(name, host_value, is_constexpr):
            return AssumedParameter(name, CONSTEXPR, None, source="absent")
        if is_constexpr:
            value, source = self._infer_used_constant(name, host_value)
            return AssumedParameter(name, CONSTEXPR, value, source=source)
        is_pointer = name in self._uses.pointers
        if host_value.kind != "constant" and (is_pointer or host_value.kind == "tensor"):
            kind, source = self._infer_used_pointee(name, host_value)
            expression = _to_host_text(host_value, name)
            return AssumedParameter(name, f"*{kind}", expression=expression, source=source)
        if host_value.kind == "constant" and host_value.value is None and self._launch is not None:
            if not is_pointer or self._flags is False:
                return AssumedParameter(name, CONSTEXPR, None, source="host")
            kind, source = self._infer_pointee(name, host_value)
            return AssumedParameter(name, f"*{kind}", expression=name, source=source)
        return _infer_number(name, host_value, self._limits, annotation)

    def _is_absent(self, name: str, host_value: HostValue, is_constexpr: bool) -> bool:
        """Return whether the parameter is assumed None, since the kernel compares it with None."""
        if name not in self._uses.compared_with_none:
            return False
        if self._flags is False and host_value.kind == "constant":
            return True
        return not host_value.is_known and (is_constexpr or self._flags is False)

    def _infer_used_constant(self, name: str, host_value: HostValue) -> tuple[Any, str]:
        """Infer the value of a constant from the kernel's text."""
        value, source = self._infer_constant(name, host_value)
        uses = self._uses
        if host_value.kind == "constant" or source not in ("name", "both", "host"):
            return value, source
        if name in uses.required_values:
            return uses.required_values[name], "its use"
        if name in uses.compared_words:
            return uses.compared_words[name], SOURCE_ONE_WORD
        if name in uses.unrolled_loops and type(value) is int:
            return self._infer_iterations(name, value, source)
        return value, source

    def _infer_constant(self, name: str, host_value: HostValue) -> tuple[Any, str]:
        if host_value.kind == "constant":
            if isinstance(host_value.value, bool) and self._flags is not None:
                return self._flags, "both"
            return host_value.value, "host"
        if name in self._tuner_constants:
            return self._tuner_constants[name], "its tuner"
        lower = name.lower()
        if host_value.kind == "flag" or _is_flag_name(name):
            return bool(self._flags), "both"
        if lower.endswith(("dtype", "_type")) or "_dtype" in lower:
            return (tl.float8e4nv if "8" in lower else tl.bfloat16), "name"
        if host_value.kind == "number":
            # A size is at least 1: with 0 a kernel does nothing.
            return max(1, self._evaluate_constant(name, host_value.expression)), "host"
        default = self._defaults.get(name)
        if isinstance(default, ast.Constant) and default.value is not None:
            return default.value, "default"
        if lower.startswith(("block", "tile")) or lower in ("bd", "bs", "bh", "bn", "bm"):
            return 128 if "_d" in lower else 64, "name"
        if lower in ("bt", "bk", "bv", "bc"):
            return 64, "name"
        if _is_float_name(lower):
            return 1.0, "name"
        return find_usual_value(self._limits, name), "name"

    def _evaluate_constant(self, name: str, expression: Expression) -> int:
        is_compound = has_several_symbols(expression)

        def find_value(symbol: str) -> int:
            side = self._side_names.get(symbol, "")
            quantity = self._limits.find_quantity(symbol, side_name=side)
            other = name if quantity else self._parameter_by_expression.get(symbol, name)
            words = [symbol] if quantity and is_compound else [symbol, other]
            return find_usual_value(self._limits, *words, side_name=side)

        return evaluate_expression(expression, find_value)

    def _infer_iterations(self, name: str, value: int, source: str) -> tuple[int, str]:
        """Infer the length of an unrolled loop: the maximum, which covers all shorter loops."""
        most = self._limits.quantities["turns"].largest
        if not self._uses.is_only_loop_count(name):  # its other uses would change, too
            return (value, source) if value <= most else (most, SOURCE_FEW_ITERATIONS)
        quantity = self._limits.find_quantity(name)
        return (most if quantity is None else min(quantity.largest, most)), "its loop"

    def _infer_used_pointee(self, name: str, host_value: HostValue) -> tuple[str, str]:
        """Infer the type that a pointer points to from the kernel's text."""
        uses = self._uses
        kind, source = self._infer_pointee(name, host_value)
        if name not in uses.pointers:
            source = SOURCE_UNUSED
        if name in uses.pointee_types and source != "host":
            kind, source = uses.pointee_types[name], "its use"
        if name in uses.atomic_pointers and kind in _SHORT_TYPES:
            kind, source = "i32", "its use"
        return kind, source

    def _infer_pointee(self, name: str, host_value: HostValue) -> tuple[str, str]:
        if kind := _TRITON_TYPES.get(host_value.dtype):
            return kind, "host"
        content = self._limits.find_content(name, _to_host_text(host_value, name))
        lower = name.lower()
        if name in self._uses.index_pointers:
            return (content[1] if content else "i32"), "its use"
        if content and not any(word in lower for word in _REAL_CONTENT_WORDS):
            return content[1], "name"
        return ("fp32" if any(word in lower for word in _FP32_WORDS) else "bf16"), "name"


def apply_recorded_launch(
    assumed_parameters: Sequence[AssumedParameter], recorded_launch: LaunchMode
) -> list[AssumedParameter] | None:
    """Take types and constants from a recorded launch; None if another kernel was launched."""
    if [parameter.name for parameter in assumed_parameters] != list(recorded_launch.types):
        return None
    return [_apply_recorded_parameter(each, recorded_launch) for each in assumed_parameters]


def _apply_recorded_parameter(
    parameter: AssumedParameter, recorded_launch: LaunchMode
) -> AssumedParameter:
    kind = recorded_launch.types[parameter.name]
    if kind == CONSTEXPR:
        return replace(
            parameter,
            kind=kind,
            value=constant_from_json(recorded_launch.constants[parameter.name]),
            source=SOURCE_RECORDED_LAUNCH,
        )
    if kind == parameter.kind:
        return parameter
    expression = parameter.expression or parameter.name
    return replace(
        parameter, kind=kind, value=None, expression=expression, source=SOURCE_RECORDED_LAUNCH
    )


def _to_host_text(host_value: HostValue, name: str) -> str:
    expression = host_value.expression
    return expression if isinstance(expression, str) and expression else name


def _is_float_name(name: str) -> bool:
    if _INTEGER_NAME.search(name):
        return False
    return name.endswith("scale") or not _FLOAT_WORDS.isdisjoint(name.split("_"))


def _is_flag_name(name: str) -> bool:
    first, *rest = name.upper().split("_")
    return (
        first in _FLAG_WORDS
        or first.startswith(("IS", "HAS"))
        or not {"IS", "HAS"}.isdisjoint(rest)
    )


def find_usual_value(limits: SizeLimits, *words: str, side_name: str = "") -> int:
    quantity = limits.find_quantity(*words, side_name=side_name)
    return 16 if quantity is None else quantity.usual


def _infer_number(
    name: str, host_value: HostValue, limits: SizeLimits, annotation: str
) -> AssumedParameter:
    value = host_value.value
    if host_value.kind == "real" or isinstance(value, float):
        return AssumedParameter(name, "fp32", source="host")
    if host_value.kind == "constant" and value is not None:
        if isinstance(value, bool):
            return AssumedParameter(name, "i1", source="host")
        if isinstance(value, int):
            return AssumedParameter(name, CONSTEXPR if value == 1 else "i32", value, value, "host")
        return AssumedParameter(name, CONSTEXPR, value, source="host")
    if host_value.kind != "number" and _is_float_name(name.lower()):
        return AssumedParameter(name, "fp32", source="name")
    expression: Expression = host_value.expression if host_value.kind == "number" else name
    if host_value.kind == "unknown" and host_value.expression:
        expression = host_value.expression
    quantity = find_expression_quantity(limits, expression, name)
    if quantity is not None and quantity.largest == 1:
        return AssumedParameter(name, CONSTEXPR, 1, 1, "host")
    is_wide = quantity is not None and quantity.largest >= _INT64_FROM
    kind = "i64" if is_wide or "int64" in annotation else "i32"
    source = "host" if host_value.kind == "number" else "name"
    return AssumedParameter(name, kind, None, expression, source)


def find_expression_quantity(
    limits: SizeLimits, expression: Expression, name: str
) -> SizeQuantity | None:
    if isinstance(expression, str):
        return limits.find_quantity(expression, name)
    quantities = map(limits.find_quantity, iterate_symbols(expression))
    return next((quantity for quantity in quantities if quantity is not None), None)
