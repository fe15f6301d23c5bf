"""What a kernel is read with: for each parameter a type, or the constant that it is compiled for.

The host's code comes first (`host`), then how the kernel uses the parameter, then its name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import triton.language as tl

from harness.kernels.triton.recorded_launches import CONSTEXPR, LaunchMode, constant_from_json
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
_INTEGER_NAME = re.compile(r"stride|bytes|offset|_cap$")  # whatever else stands in the name
_SHORT_TYPES = ("i8", "u8", "i16", "fp8e4nv")  # nothing is counted in these
SOURCE_UNUSED = "its host alone"  # a tensor there, and no pointer here
SOURCE_RECORDED_LAUNCH = "a launch that was made"
SOURCE_DESCRIPTIONS = {  # of a constant, in words for who reads of it
    "host": "the code that launches it", "name": "by its name", "both": "tried both ways",
    "absent": "an argument that is not there", "default": "its default",
}  # fmt: skip
SOURCE_ONE_WORD, SOURCE_FEW_ITERATIONS = (
    "one of its words",
    "a few turns",
)  # where a kernel is not read whole
_INT64_FROM = 2**31


@dataclass(frozen=True, slots=True)
class AssumedParameter:
    """One parameter as the kernel is read with it, and what stands for it at the call."""

    name: str
    kind: str  # as Triton writes it; "constexpr" where it is a constant
    value: Any = None
    expression: Expression = ""  # of a number: in the words of the caller
    source: str = ""  # who says so: the host, the kernel, a name
    host_value: HostValue = field(
        default=HostValue(), compare=False, repr=False
    )  # what the host says of it

    @property
    def is_pointer(self) -> bool:
        return self.kind.startswith("*")


def describe_unread_constants(assumed_parameters: Sequence[AssumedParameter]) -> set[str]:
    """What of a kernel is not read with these: nothing there is safe by it."""
    return {
        f"it is read with {one.name} = {one.value!r} alone"
        for one in assumed_parameters
        if one.source in (SOURCE_ONE_WORD, SOURCE_FEW_ITERATIONS)
    }


def infer_parameters(
    module: LazyModule,
    node: ast.FunctionDef,
    launch: HostLaunch | None,
    limits: SizeLimits,
    flags: bool | None,
) -> list[AssumedParameter]:
    """How a kernel is read for a launch; `flags` decides what the host leaves open."""
    uses = find_parameter_uses(module, node)
    tuned = read_tuner_constants(node)
    made: list[AssumedParameter] = []
    told: list[HostValue] = []
    called = launch.side_names if launch is not None else {}
    arguments = [*node.args.args, *node.args.kwonlyargs]
    alone = _map_words_to_parameters(launch, [one.arg for one in arguments])
    defaults: dict[str, ast.expr] = {
        one.arg: value
        for one, value in zip(
            node.args.args[len(node.args.args) - len(node.args.defaults) :],
            node.args.defaults,
            strict=True,
        )
    }
    for place, argument in enumerate(arguments):
        given = HostValue()
        if launch is not None:
            given = launch.arguments.get(argument.arg) or launch.arguments.get(place) or HostValue()
        told.append(given)
        note = ast.unparse(argument.annotation) if argument.annotation else ""
        constant = "constexpr" in note
        name = argument.arg
        pointer = name in uses.pointers or (given.kind == "tensor" and not constant)
        if (
            name in uses.compared_with_none
            and not (given.is_known and given.kind != "constant")
            and flags is False
        ) or (
            name in uses.compared_with_none and not given.is_known and (constant or flags is False)
        ):
            made.append(AssumedParameter(name, "constexpr", None, source="absent"))
        elif constant:
            value, source = _infer_constant(
                module, name, given, tuned, defaults.get(name), limits, flags, alone, called
            )
            if given.kind != "constant" and source in ("name", "both", "host"):
                if name in uses.required_values:
                    value, source = uses.required_values[name], "its use"
                elif name in uses.compared_words:
                    value, source = uses.compared_words[name], SOURCE_ONE_WORD
                elif name in uses.unrolled_loops and type(value) is int:
                    value, source = _infer_iterations(
                        limits, name, value, source, uses.is_only_loop_count(name)
                    )
            made.append(AssumedParameter(name, "constexpr", value, source=source))
        elif pointer and given.kind != "constant":
            kind, source = _infer_pointee(name, given, limits, name in uses.index_pointers)
            if name not in uses.pointers:
                source = SOURCE_UNUSED
            if name in uses.pointee_types and source != "host":
                kind, source = uses.pointee_types[name], "its use"
            if name in uses.atomic_pointers and kind in _SHORT_TYPES:
                kind, source = "i32", "its use"
            made.append(
                AssumedParameter(
                    name, f"*{kind}", expression=_to_host_text(given, name), source=source
                )
            )
        elif given.kind == "constant" and given.value is None and launch is not None:
            if name in uses.pointers and flags is not False:
                kind, source = _infer_pointee(name, given, limits, name in uses.index_pointers)
                made.append(AssumedParameter(name, f"*{kind}", expression=name, source=source))
            else:
                made.append(AssumedParameter(name, "constexpr", None, source="host"))
        else:
            made.append(_infer_number(name, given, limits, defaults.get(name), note))
    return [replace(one, host_value=given) for one, given in zip(made, told, strict=True)]


def _map_words_to_parameters(launch: HostLaunch | None, names: Sequence[str]) -> dict[str, str]:
    """By a word of the caller the parameter that it is given to: elsewhere it is that number."""
    given = launch.arguments if launch is not None else {}
    return {
        one.expression: name
        for place, name in enumerate(names)
        if (one := given.get(name) or given.get(place) or HostValue()).kind == "number"
        and isinstance(one.expression, str)
    }


def apply_recorded_launch(
    assumed_parameters: Sequence[AssumedParameter], recorded_launch: LaunchMode
) -> list[AssumedParameter] | None:
    """The same with the types and constants of a launch that was made; not of another kernel's."""
    if [one.name for one in assumed_parameters] != list(recorded_launch.types):
        return None
    return [_apply_recorded_parameter(one, recorded_launch) for one in assumed_parameters]


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
    told = parameter.expression or parameter.name
    return replace(parameter, kind=kind, value=None, expression=told, source=SOURCE_RECORDED_LAUNCH)


def _to_host_text(host_value: HostValue, name: str) -> str:
    return (
        host_value.expression
        if isinstance(host_value.expression, str) and host_value.expression
        else name
    )


def _infer_constant(
    module: LazyModule,
    name: str,
    host_value: HostValue,
    tuner_constants: dict[str, Any],
    default: ast.expr | None,
    limits: SizeLimits,
    flags: bool | None,
    sole_parameters: Mapping[str, str],
    side_names: Mapping[str, str],
) -> tuple[Any, str]:
    if host_value.kind == "constant":
        value = host_value.value
        if isinstance(value, bool) and flags is not None:
            return flags, "both"
        return value, "host"
    if name in tuner_constants:
        return tuner_constants[name], "its tuner"
    typed = name.lower()
    if host_value.kind == "flag" or _is_flag_name(name):
        return bool(flags), "both"
    if typed.endswith(("dtype", "_type")) or "_dtype" in typed:
        return (tl.float8e4nv if "8" in typed else tl.bfloat16), "name"
    if host_value.kind == "number":
        many = has_several_symbols(host_value.expression)

        def value_of(word: str) -> int:
            side = side_names.get(word, "")
            known = limits.find_quantity(word, side_name=side)
            own = name if known else sole_parameters.get(word, name)
            return find_usual_value(
                limits, word, *([] if known and many else [own]), side_name=side
            )

        value = evaluate_expression(host_value.expression, value_of)
        return max(1, value), "host"  # a size: with none of something nothing happens
    if isinstance(default, ast.Constant) and default.value is not None:
        return default.value, "default"
    if typed.startswith(("block", "tile")) or typed in ("bd", "bs", "bh", "bn", "bm"):
        return 128 if "_d" in typed else 64, "name"
    if typed in ("bt", "bk", "bv", "bc"):
        return 64, "name"
    if _is_float_name(typed):
        return 1.0, "name"
    return find_usual_value(limits, name), "name"


def _infer_iterations(
    limits: SizeLimits, name: str, value: int, source: str, counts_only_loops: bool
) -> tuple[int, str]:
    """How often a loop is unrolled: the most that may be, where fewer turns are a part of those."""
    most = limits.quantities["turns"].largest
    if not counts_only_loops:  # what it is besides would be another number, too
        return (value, source) if value <= most else (most, SOURCE_FEW_ITERATIONS)
    quantity = limits.find_quantity(name)
    return (most if quantity is None else min(quantity.largest, most)), "its loop"


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


def _infer_pointee(
    name: str, host_value: HostValue, limits: SizeLimits, is_index: bool
) -> tuple[str, str]:
    if host_value.dtype:
        kind = _TRITON_TYPES.get(host_value.dtype)
        if kind:
            return kind, "host"
    held = limits.find_content(name, _to_host_text(host_value, name))
    typed = name.lower()
    if is_index:
        return (held[1] if held else "i32"), "its use"
    if held and not any(
        word in typed for word in ("scale", "weight", "value", "score", "logit", "prob")
    ):
        return held[1], "name"
    if any(
        word in typed
        for word in ("scale", "lse", "max", "sum", "logit", "temperature", "prob", "bias")
    ):
        return "fp32", "name"
    return "bf16", "name"


def _infer_number(
    name: str, host_value: HostValue, limits: SizeLimits, default: ast.expr | None, annotation: str
) -> AssumedParameter:
    typed = name.lower()
    if host_value.kind == "real" or isinstance(host_value.value, float):
        return AssumedParameter(name, "fp32", source="host")
    if host_value.kind == "constant" and isinstance(host_value.value, (bool, int)):
        if isinstance(host_value.value, bool):
            return AssumedParameter(
                name, "constexpr" if host_value.value is None else "i1", source="host"
            )
        return AssumedParameter(
            name,
            "i32" if host_value.value != 1 else "constexpr",
            host_value.value,
            host_value.value,
            "host",
        )
    if host_value.kind == "constant" and host_value.value is not None:
        return AssumedParameter(name, "constexpr", host_value.value, source="host")
    if host_value.kind != "number" and _is_float_name(typed):
        return AssumedParameter(name, "fp32", source="name")
    expression: Expression = host_value.expression if host_value.kind == "number" else name
    if host_value.kind == "unknown" and host_value.expression:
        expression = host_value.expression
    kind = "i32"
    if "int64" in annotation:
        kind = "i64"
    quantity = find_expression_quantity(limits, expression, name)
    if quantity is not None and quantity.largest == 1:
        return AssumedParameter(name, "constexpr", 1, 1, "host")
    if quantity is not None and quantity.largest >= _INT64_FROM:
        kind = "i64"
    return AssumedParameter(
        name, kind, None, expression, "host" if host_value.kind == "number" else "name"
    )


def find_expression_quantity(
    limits: SizeLimits, expression: Expression, name: str
) -> SizeQuantity | None:
    if isinstance(expression, str):
        return limits.find_quantity(expression, name)
    largest = [limits.find_quantity(one) for one in iterate_symbols(expression)]
    return next((one for one in largest if one is not None), None)
