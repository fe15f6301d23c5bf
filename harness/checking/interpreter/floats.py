"""Float operations as compiled kernels do them, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as stock

from harness.checking import arithmetic
from harness.checking.memory import Array
from harness.checking.violations import CannotFollow

Handle = stock.TensorHandle


def methods(builder: Any) -> dict[str, Callable[..., Any]]:
    made = {name: _float(getattr(builder, name), _FLOAT[name], name) for name in _FLOAT}
    made |= {name: _conversion() for name in _CONVERSIONS if hasattr(builder, name)}
    made["create_dot"] = _dot
    made["create_fneg"] = _negated
    made["create_clampf"] = _clamp
    made["get_bf16"] = lambda value: Handle(
        arithmetic.narrowed(np.array([value], dtype=np.float32), "bf16"), tl.bfloat16
    )
    return made


def _float(method: Any, function: Any, name: str) -> Callable[..., Any]:
    """In numpy's floats where numpy has them, widened and narrowed where it has not."""

    def real(*args: Any) -> Any:
        names = {value.dtype.scalar.name for value in args}
        if not names & arithmetic.PACKED and function is None:
            return method(*args)
        kind = args[-1].dtype.scalar.name
        if names - arithmetic.KNOWN or names & {"fp8e4nv", "fp8e5"}:
            raise CannotFollow(f"{name.removeprefix('create_')} of {sorted(names)}")
        wide = [arithmetic.widened(value.data, kind) for value in args]
        with np.errstate(**arithmetic.QUIET):
            result = (function or _NUMPY[name])(*wide)
        if result.dtype == bool:
            return Handle(result, tl.int1)
        return Handle(arithmetic.narrowed(result, kind), args[-1].dtype.scalar)

    return real


def _negated(value: Any) -> Any:
    """The sign's bit, whatever the format."""
    bits = value.data.view(f"u{value.data.dtype.itemsize}")
    sign = bits.dtype.type(1 << (8 * bits.dtype.itemsize - 1))
    return Handle((bits ^ sign).view(value.data.dtype), value.dtype.scalar)


def _clamp(value: Any, low: Any, high: Any, propagate_nan: Any) -> Any:
    kind = value.dtype.scalar.name
    if kind in ("fp8e4nv", "fp8e5") or kind not in arithmetic.KNOWN:
        raise CannotFollow(f"tl.clamp of {kind}")
    wide = [arithmetic.widened(each.data, kind) for each in (value, low, high)]
    if propagate_nan == stock._ir.PROPAGATE_NAN.ALL:
        result = np.minimum(np.maximum(wide[0], wide[1]), wide[2])
    else:
        result = arithmetic.smaller(arithmetic.larger(wide[0], wide[1]), wide[2])
    return Handle(arithmetic.narrowed(result, kind), value.dtype.scalar)


def _conversion() -> Callable[..., Any]:
    def convert(src: Any, dst_type: Any, rounding: Any = None) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        for kind in (source, target):
            if kind.is_floating() and kind.name not in arithmetic.KNOWN:
                raise CannotFollow(f"a conversion of {source} to {target}")
        if rounding is not None and rounding != stock._ir.ROUNDING_MODE.RTNE:
            raise CannotFollow(f"a conversion of {source} to {target} rounded toward zero")
        if "fp64" in (source.name, target.name) and (
            {source.name, target.name} & arithmetic.PACKED
        ):
            raise CannotFollow(f"a conversion of {source} to {target}")
        wide = arithmetic.widened(src.data, source.name)
        if (source.name, target.name) == ("fp8e5", "bf16") and not np.isfinite(wide).all():
            # Compiled, these become large numbers: an accident that no kernel may build on.
            raise CannotFollow("a conversion of infinities or NaN from fp8e5 to bf16")
        if target.is_floating():
            if target.name in arithmetic.PACKED:
                wide = wide.astype(np.float32)
            return Handle(arithmetic.narrowed(wide, target.name), target)
        if target == tl.int1:
            return Handle(wide != 0, target)
        return Handle(arithmetic.to_integer(wide, stock._get_np_dtype(target)), target)

    return convert


def _dot(a: Any, b: Any, d: Any, *rest: Any) -> Any:
    names = {a.dtype.scalar.name, b.dtype.scalar.name}
    if "fp32" in names and "IEEE" not in str(rest[:1]).upper():
        raise CannotFollow("tl.dot of float32 in tf32: only input_precision='ieee' is exact")
    if names <= {"int8", "uint8"}:
        product = np.matmul(a.data.astype(np.int32), b.data.astype(np.int32))
        return Handle(product + d.data, d.dtype.scalar)
    if names - arithmetic.KNOWN or d.dtype.scalar.name not in ("fp32", "fp16"):
        raise CannotFollow(f"tl.dot of {sorted(names)} into {d.dtype.scalar}")
    wide = [
        arithmetic.widened(value.data, value.dtype.scalar.name).astype(np.float32)
        for value in (a, b)
    ]
    total = np.matmul(*wide) + d.data.astype(np.float32)
    return Handle(arithmetic.narrowed(total, d.dtype.scalar.name), d.dtype.scalar)


def _equal_or_nan(compare: Any) -> Callable[[Array, Array], Array]:
    """An unordered comparison: true, too, where either side is no number."""
    return lambda lhs, rhs: compare(lhs, rhs) | np.isnan(lhs) | np.isnan(rhs)


_NUMPY = {
    "create_fadd": np.add,
    "create_fsub": np.subtract,
    "create_fmul": np.multiply,
    "create_fdiv": np.divide,
    "create_frem": np.fmod,
    "create_minimumf": np.minimum,
    "create_maximumf": np.maximum,
}
# None: numpy's own where numpy has the type. A function: there too, as the interpreter's differs.
_FLOAT: dict[str, Any] = {
    **dict.fromkeys(_NUMPY),
    "create_minnumf": arithmetic.smaller,
    "create_maxnumf": arithmetic.larger,
    "create_fma": lambda x, y, z: (
        x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)
    ).astype(z.dtype),
    "create_fcmpOLT": np.less,
    "create_fcmpOGT": np.greater,
    "create_fcmpOLE": np.less_equal,
    "create_fcmpOGE": np.greater_equal,
    "create_fcmpOEQ": np.equal,
    "create_fcmpONE": lambda x, y: np.not_equal(x, y) & ~(np.isnan(x) | np.isnan(y)),
    "create_fcmpULT": _equal_or_nan(np.less),
    "create_fcmpUGT": _equal_or_nan(np.greater),
    "create_fcmpULE": _equal_or_nan(np.less_equal),
    "create_fcmpUGE": _equal_or_nan(np.greater_equal),
    "create_fcmpUEQ": _equal_or_nan(np.equal),
    "create_fcmpUNE": np.not_equal,
}
_CONVERSIONS = (
    "create_si_to_fp",
    "create_ui_to_fp",
    "create_fp_to_si",
    "create_fp_to_ui",
    "create_fp_ext",
    "create_fp_trunc",
    "create_fp_to_fp",
)
