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

from harness.audit.expressions import Expression, evaluated, several, symbols
from harness.audit.given import Given
from harness.audit.host import Launch
from harness.audit.launches import configured
from harness.audit.limits import Limits, Quantity
from harness.audit.loading import Module
from harness.audit.uses import uses_of
from harness.kernels.launched import CONSTANT, Launched, meant

_FLAGS = ("HAS", "IS", "USE", "ENABLE", "DO", "APPLY", "WITH", "RETURN", "SAVE", "STORE", "NEED")
_KINDS = {
    "int32": "i32", "int64": "i64", "int": "i32", "long": "i64", "int16": "i16", "int8": "i8",
    "uint8": "u8", "uint32": "u32", "uint64": "u64", "bool": "i1",
    "float32": "fp32", "float": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64",
    "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
}  # fmt: skip
_REALS = frozenset(
    "scale scales eps alpha beta theta cap softcap temperature inv factor threshold freq penalty "
    "prob rcp limit max_value min_value".split()
)
_NUMBERS = re.compile(r"stride|bytes|offset|_cap$")  # whatever else stands in the name
_SHORT = ("i8", "u8", "i16", "fp8e4nv")  # nothing is counted in these
UNUSED = "its host alone"  # a tensor there, and no pointer here
LAUNCHED = "a launch that was made"
SOURCES = {  # of a constant, in words for who reads of it
    "host": "the code that launches it", "name": "by its name", "both": "tried both ways",
    "absent": "an argument that is not there", "default": "its default",
}  # fmt: skip
ONE_WORD, FEW_TURNS = "one of its words", "a few turns"  # where a kernel is not read whole
_SMALLEST_LARGE = 2**31


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter as the kernel is read with it, and what stands for it at the call."""

    name: str
    kind: str  # as Triton writes it; "constexpr" where it is a constant
    value: Any = None
    expression: Expression = ""  # of a number: in the words of the caller
    source: str = ""  # who says so: the host, the kernel, a name
    given: Given = field(default=Given(), compare=False, repr=False)  # what the host says of it

    @property
    def is_pointer(self) -> bool:
        return self.kind.startswith("*")


def unread(made: Sequence[Parameter]) -> set[str]:
    """What of a kernel is not read with these: nothing there is safe by it."""
    return {
        f"it is read with {one.name} = {one.value!r} alone"
        for one in made
        if one.source in (ONE_WORD, FEW_TURNS)
    }


def parameters(
    module: Module, node: ast.FunctionDef, launch: Launch | None, limits: Limits, flags: bool | None
) -> list[Parameter]:
    """How a kernel is read for a launch; `flags` decides what the host leaves open."""
    uses = uses_of(module, node)
    tuned = configured(node)
    made: list[Parameter] = []
    told: list[Given] = []
    called = launch.called if launch is not None else {}
    arguments = [*node.args.args, *node.args.kwonlyargs]
    alone = _passed_alone(launch, [one.arg for one in arguments])
    defaults: dict[str, ast.expr] = {
        one.arg: value
        for one, value in zip(
            node.args.args[len(node.args.args) - len(node.args.defaults) :],
            node.args.defaults,
            strict=True,
        )
    }
    for place, argument in enumerate(arguments):
        given = Given()
        if launch is not None:
            given = launch.arguments.get(argument.arg) or launch.arguments.get(place) or Given()
        told.append(given)
        note = ast.unparse(argument.annotation) if argument.annotation else ""
        constant = "constexpr" in note
        name = argument.arg
        pointer = name in uses.pointers or (given.kind == "tensor" and not constant)
        if (
            name in uses.absent
            and not (given.is_known and given.kind != "constant")
            and flags is False
        ) or (name in uses.absent and not given.is_known and (constant or flags is False)):
            made.append(Parameter(name, "constexpr", None, source="absent"))
        elif constant:
            value, source = _constant(
                module, name, given, tuned, defaults.get(name), limits, flags, alone, called
            )
            if given.kind != "constant" and source in ("name", "both", "host"):
                if name in uses.required:
                    value, source = uses.required[name], "its use"
                elif name in uses.words:
                    value, source = uses.words[name], ONE_WORD
                elif name in uses.turns and type(value) is int:
                    value, source = _turns(limits, name, value, source, uses.only_turns(name))
            made.append(Parameter(name, "constexpr", value, source=source))
        elif pointer and given.kind != "constant":
            kind, source = _pointee(name, given, limits, name in uses.indices)
            if name not in uses.pointers:
                source = UNUSED
            if name in uses.kinds and source != "host":
                kind, source = uses.kinds[name], "its use"
            if name in uses.counted and kind in _SHORT:
                kind, source = "i32", "its use"
            made.append(Parameter(name, f"*{kind}", expression=_text(given, name), source=source))
        elif given.kind == "constant" and given.value is None and launch is not None:
            if name in uses.pointers and flags is not False:
                kind, source = _pointee(name, given, limits, name in uses.indices)
                made.append(Parameter(name, f"*{kind}", expression=name, source=source))
            else:
                made.append(Parameter(name, "constexpr", None, source="host"))
        else:
            made.append(_number(name, given, limits, defaults.get(name), note))
    return [replace(one, given=given) for one, given in zip(made, told, strict=True)]


def _passed_alone(launch: Launch | None, names: Sequence[str]) -> dict[str, str]:
    """By a word of the caller the parameter that it is given to: elsewhere it is that number."""
    given = launch.arguments if launch is not None else {}
    return {
        one.expression: name
        for place, name in enumerate(names)
        if (one := given.get(name) or given.get(place) or Given()).kind == "number"
        and isinstance(one.expression, str)
    }


def as_launched(made: Sequence[Parameter], way: Launched) -> list[Parameter] | None:
    """The same with the types and constants of a launch that was made; not of another kernel's."""
    if [one.name for one in made] != list(way.kinds):
        return None
    return [_as_launched(one, way) for one in made]


def _as_launched(one: Parameter, way: Launched) -> Parameter:
    kind = way.kinds[one.name]
    if kind == CONSTANT:
        return replace(one, kind=kind, value=meant(way.constants[one.name]), source=LAUNCHED)
    if kind == one.kind:
        return one
    told = one.expression or one.name
    return replace(one, kind=kind, value=None, expression=told, source=LAUNCHED)


def _text(given: Given, name: str) -> str:
    return given.expression if isinstance(given.expression, str) and given.expression else name


def _constant(
    module: Module,
    name: str,
    given: Given,
    tuned: dict[str, Any],
    default: ast.expr | None,
    limits: Limits,
    flags: bool | None,
    alone: Mapping[str, str],
    called: Mapping[str, str],
) -> tuple[Any, str]:
    if given.kind == "constant":
        value = given.value
        if isinstance(value, bool) and flags is not None:
            return flags, "both"
        return value, "host"
    if name in tuned:
        return tuned[name], "its tuner"
    typed = name.lower()
    if given.kind == "flag" or _is_flag(name):
        return bool(flags), "both"
    if typed.endswith(("dtype", "_type")) or "_dtype" in typed:
        return (tl.float8e4nv if "8" in typed else tl.bfloat16), "name"
    if given.kind == "number":
        many = several(given.expression)

        def value_of(word: str) -> int:
            side = called.get(word, "")
            known = limits.quantity(word, called=side)
            own = name if known else alone.get(word, name)
            return usual(limits, word, *([] if known and many else [own]), called=side)

        value = evaluated(given.expression, value_of)
        return max(1, value), "host"  # a size: with none of something nothing happens
    if isinstance(default, ast.Constant) and default.value is not None:
        return default.value, "default"
    if typed.startswith(("block", "tile")) or typed in ("bd", "bs", "bh", "bn", "bm"):
        return 128 if "_d" in typed else 64, "name"
    if typed in ("bt", "bk", "bv", "bc"):
        return 64, "name"
    if _is_real(typed):
        return 1.0, "name"
    return usual(limits, name), "name"


def _turns(limits: Limits, name: str, value: int, source: str, alone: bool) -> tuple[int, str]:
    """How often a loop is unrolled: the most that may be, where fewer turns are a part of those."""
    most = limits.quantities["turns"].largest
    if not alone:  # what it is besides would be another number, too
        return (value, source) if value <= most else (most, FEW_TURNS)
    quantity = limits.quantity(name)
    return (most if quantity is None else min(quantity.largest, most)), "its loop"


def _is_real(name: str) -> bool:
    if _NUMBERS.search(name):
        return False
    return name.endswith("scale") or not _REALS.isdisjoint(name.split("_"))


def _is_flag(name: str) -> bool:
    first, *rest = name.upper().split("_")
    return first in _FLAGS or first.startswith(("IS", "HAS")) or not {"IS", "HAS"}.isdisjoint(rest)


def usual(limits: Limits, *words: str, called: str = "") -> int:
    quantity = limits.quantity(*words, called=called)
    return 16 if quantity is None else quantity.usual


def _pointee(name: str, given: Given, limits: Limits, index: bool) -> tuple[str, str]:
    if given.dtype:
        kind = _KINDS.get(given.dtype)
        if kind:
            return kind, "host"
    held = limits.content(name, _text(given, name))
    typed = name.lower()
    if index:
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


def _number(
    name: str, given: Given, limits: Limits, default: ast.expr | None, note: str
) -> Parameter:
    typed = name.lower()
    if given.kind == "real" or isinstance(given.value, float):
        return Parameter(name, "fp32", source="host")
    if given.kind == "constant" and isinstance(given.value, (bool, int)):
        if isinstance(given.value, bool):
            return Parameter(name, "constexpr" if given.value is None else "i1", source="host")
        return Parameter(
            name, "i32" if given.value != 1 else "constexpr", given.value, given.value, "host"
        )
    if given.kind == "constant" and given.value is not None:
        return Parameter(name, "constexpr", given.value, source="host")
    if given.kind != "number" and _is_real(typed):
        return Parameter(name, "fp32", source="name")
    expression: Expression = given.expression if given.kind == "number" else name
    if given.kind == "unknown" and given.expression:
        expression = given.expression
    kind = "i32"
    if "int64" in note:
        kind = "i64"
    quantity = quantity_of(limits, expression, name)
    if quantity is not None and quantity.largest == 1:
        return Parameter(name, "constexpr", 1, 1, "host")
    if quantity is not None and quantity.largest >= _SMALLEST_LARGE:
        kind = "i64"
    return Parameter(name, kind, None, expression, "host" if given.kind == "number" else "name")


def quantity_of(limits: Limits, expression: Expression, name: str) -> Quantity | None:
    if isinstance(expression, str):
        return limits.quantity(expression, name)
    largest = [limits.quantity(one) for one in symbols(expression)]
    return next((one for one in largest if one is not None), None)
