"""What a value carries along: the argument a pointer was made from, and integers that wrapped.

Both hang on the interpreter's own handles. Integers are computed in a type that holds the true
value; lanes where the kernel's type does not are remembered, through what is computed from them,
until they reach an address or are forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as stock

from harness.checking import arithmetic
from harness.checking.accesses import Wrap
from harness.checking.memory import Array, Span
from harness.checking.violations import CannotFollow, Place

Handle = stock.TensorHandle


class Carried:
    """Puts origins and wraps on the results of the builder's operations."""

    def __init__(self, place: Callable[[], Place]) -> None:
        self._place = place
        self._wraps = False  # did any integer wrap in this program?

    def program_starts(self) -> None:
        self._wraps = False

    def methods(self, builder: Any) -> dict[str, Callable[..., Any]]:
        methods = {
            name: self._marked(getattr(builder, name), name)
            for name in dir(builder)
            if name.startswith("create_") and not _SILENT.search(name)
        }
        for name, exact in _INTEGER.items():
            methods[name] = self._integer(getattr(builder, name), *exact)
        for name in _CONFINES & methods.keys():
            methods[name] = getattr(builder, name)
        methods["create_and"] = self._and(builder.create_and)
        methods["create_gather"] = self._gather(builder.create_gather)
        methods["create_int_cast"] = self._marked(self._int_cast(builder.create_int_cast))
        methods["create_addptr"] = self._addptr
        return methods

    def _marked(self, method: Callable[..., Any], name: str = "") -> Callable[..., Any]:
        """Carries a pointer's origin and the memory of a wrap over an operation.

        One that does more than move bits has to know floats, and this one's are numpy's.
        """

        def marked(*args: Any, **options: Any) -> Any:
            if name and name not in _MOVES:
                _refuse_packed(name, args)
            result = method(*args, **options)
            results = result if isinstance(result, tuple) else (result,)
            pointers = [
                value
                for value in args
                if type(value) is Handle
                and ("origin" in value.__dict__ or type(value.dtype) is tl.pointer_type)
            ]
            if pointers:
                origin = _common(pointers)
                for each in results:
                    each.origin = origin
            if self._wraps and name in _SHAPES and hasattr(args[0], "wrap"):
                self._reshape_wrap(method, args, options, result)
            elif self._wraps:
                self._carry_wrap(args, results)
            return result

        return marked

    def _carry_wrap(self, args: tuple[Any, ...], results: tuple[Any, ...]) -> None:
        """A result has the wraps of what it was made from, beside any of its own."""
        handles = [value for value in args if type(value) is Handle and hasattr(value, "wrap")]
        for result in results:
            if handles and type(result) is Handle:
                own = [result.wrap] if hasattr(result, "wrap") else []
                wraps = [*own, *(value.wrap for value in handles)]
                result.wrap = joined(wraps, result.data.shape)

    @staticmethod
    def _reshape_wrap(method: Any, args: Any, options: Any, result: Any) -> None:
        wrap = args[0].wrap
        lanes = np.ascontiguousarray(np.broadcast_to(wrap.lanes, args[0].data.shape))
        moved = method(Handle(lanes, tl.int1), *args[1:], **options)
        result.wrap = Wrap(moved.data.astype(bool), wrap.operation, wrap.place)

    def _and(self, method: Any) -> Callable[..., Any]:
        """A wrapped number's low bits are right, and a mask without a sign keeps just them."""
        carrying = self._marked(method)

        def confined(lhs: Any, rhs: Any) -> Any:
            for number, mask in ((lhs, rhs), (rhs, lhs)):
                kept = mask.data.dtype.kind in "iu" and (mask.data >= 0).all()
                if hasattr(number, "wrap") and not hasattr(mask, "wrap") and kept:
                    return method(lhs, rhs)
            return carrying(lhs, rhs)

        return confined

    def _gather(self, method: Any) -> Callable[..., Any]:
        def gathered(src: Any, indices: Any, axis: int) -> Any:
            result = method(src, indices, axis)
            if "origin" in src.__dict__:
                result.origin = src.origin
            if hasattr(src, "wrap"):
                lanes = np.broadcast_to(src.wrap.lanes, src.data.shape)
                lanes = np.take_along_axis(lanes, indices.data, axis=axis)
                result.wrap = Wrap(lanes, src.wrap.operation, src.wrap.place)
            return result

        return gathered

    def transposed(self, stock_property: Any) -> property:
        """The front end's `.T`, which makes a handle of its own."""

        def swapped(tensor: Any) -> Any:
            result = stock_property.fget(tensor)
            marks = tensor.handle.__dict__
            if "origin" in marks:
                result.handle.origin = marks["origin"]
            if "wrap" in marks:
                wrap = marks["wrap"]
                lanes = np.broadcast_to(wrap.lanes, tensor.handle.data.shape)
                result.handle.wrap = Wrap(np.transpose(lanes), wrap.operation, wrap.place)
            return result

        return property(swapped)

    def materializing(self, method: Any) -> Callable[..., Any]:
        """Block pointers and descriptors: pointers from a base, offsets and strides."""

        def materialized(block: Any, *args: Any) -> Any:
            pointers, mask = method(block, *args)
            pointers.origin = block.base.__dict__.get("origin")
            parts = [*getattr(block, "offsets", ()), *block.strides]
            parts += [part for arg in args if isinstance(arg, list) for part in arg]
            self._carry_wrap(tuple(parts), (pointers,))
            return pointers, mask

        return materialized

    def _integer(self, method: Any, operation: str, exact: Any) -> Callable[..., Any]:
        """In a type that holds the true value, then back; what changed on the way is remembered."""

        def whole(lhs: Any, rhs: Any) -> Any:
            left, right = lhs.data, rhs.data
            kind = left.dtype
            if kind.kind not in "iu" or right.dtype != kind:
                return method(lhs, rhs)
            if kind.itemsize < 8:
                true = exact(left, right, dtype=np.int64)
                data = true.astype(kind)
                fits = data == true
            else:
                data = exact(left, right)
                fits = _fits_64(operation, left, right, data)
            result = Handle(data, lhs.dtype.scalar)
            if fits is not True and not fits.all():
                self._remember(result, ~fits, operation, left, right)
            return result

        return self._marked(whole)

    def _remember(
        self, result: Any, lanes: Array, operation: str, left: Array, right: Array
    ) -> None:
        lane = tuple(int(axis[0]) for axis in np.nonzero(lanes))
        one = int(np.broadcast_to(left, lanes.shape)[lane])
        other = int(np.broadcast_to(right, lanes.shape)[lane])
        got = int(result.data[lane])
        words = f"{one} {operation} {other} became {got}: more than {result.dtype} holds"
        self._wrapped(result, lanes, words)

    def _wrapped(self, result: Any, lanes: Array, words: str) -> None:
        result.wrap = Wrap(lanes, words, self._place())
        self._wraps = True

    def _int_cast(self, method: Any) -> Callable[..., Any]:
        def cast(src: Any, dst_type: Any, is_signed: bool) -> Any:
            result = method(src, dst_type, is_signed)
            narrower = result.data.dtype.itemsize < src.data.dtype.itemsize
            if narrower and result.data.dtype.kind in "iu" and src.data.dtype.kind in "iu":
                lost = result.data != src.data
                if lost.any():
                    lane = tuple(int(axis[0]) for axis in np.nonzero(lost))
                    was, now = int(src.data[lane]), int(result.data[lane])
                    words = f"{was} narrowed to {result.dtype} became {now}"
                    self._wrapped(result, lost, words)
            return result

        return cast

    def _addptr(self, ptr: Any, offset: Any) -> Any:
        width = max(1, ptr.get_element_ty().primitive_bitwidth // 8)
        data = ptr.data + np.uint64(width) * offset.data.astype(np.uint64)
        result = Handle(data, ptr.dtype)
        origin = ptr.__dict__.get("origin")
        if origin is not None:
            result.origin = origin
        if self._wraps:
            self._carry_wrap((ptr, offset), (result,))
        return result

    def folding(self, fold: Any) -> Callable[..., Any]:
        """Reductions and scans read arrays directly: what they read is held against the type."""

        def folded(value: Any, *args: Any, **options: Any) -> Any:
            values = value if isinstance(value, tuple) else (value,)
            for each in values:
                if each.dtype.name in arithmetic.PACKED:
                    raise CannotFollow(f"a reduction or scan in {each.dtype}")
            combine = options.get("combine_fn", args[1] if len(args) > 1 else None)
            # Sums of unsigned 64-bit numbers stay as they are: nothing holds more.
            whole = values[0].handle.data.dtype.kind in "iu" and values[0].dtype != tl.uint64
            if whole and combine is tl.standard._sum_combine:
                return self._sum(fold, value, args, options)
            result = fold(value, *args, **options)
            wrap = getattr(values[0].handle, "wrap", None)
            if wrap is not None and isinstance(result, tl.tensor):
                result.handle.wrap = _folded_wrap(wrap, result.handle.data.shape)
            return result

        return folded

    def _sum(self, fold: Any, value: Any, args: Any, options: Any) -> Any:
        """In 64 bits, then back."""
        shape = value.handle.data.shape
        wide = Handle(value.handle.data.astype(np.int64), tl.int64)
        kind = tl.block_type(tl.int64, list(shape)) if value.type.is_block() else tl.int64
        exact = fold(tl.tensor(wide, kind), *args, **options)
        true = exact.handle.data
        handle = Handle(true.astype(value.handle.data.dtype), value.dtype)
        if (handle.data != true).any():
            lane = tuple(int(axis[0]) for axis in np.nonzero(handle.data != true))
            words = f"a sum of {int(true[lane])} became {int(handle.data[lane])} in {value.dtype}"
            self._wrapped(handle, handle.data != true, words)
        elif hasattr(value.handle, "wrap"):
            handle.wrap = _folded_wrap(value.handle.wrap, handle.data.shape)
        block = exact.type.is_block()
        kind = tl.block_type(value.dtype, list(true.shape)) if block else value.dtype
        return tl.tensor(handle, kind)


def _refuse_packed(name: str, args: tuple[Any, ...]) -> None:
    for value in args:
        if type(value) is Handle and value.dtype.scalar.name in arithmetic.PACKED:
            raise CannotFollow(f"{name.removeprefix('create_')} of {value.dtype.scalar}")


def _common(pointers: list[Any]) -> Span | None:
    """One origin for all lanes; none where pointers of several tensors, or of no known one, mix."""
    origins = [pointer.__dict__.get("origin") for pointer in pointers]
    return origins[0] if all(origin is origins[0] for origin in origins) else None


def _folded_wrap(wrap: Wrap, shape: tuple[int, ...]) -> Wrap:
    """What a fold made of a wrapped lane may be anywhere in its result."""
    return Wrap(np.full(shape, bool(wrap.lanes.any())), wrap.operation, wrap.place)


def joined(wraps: list[Wrap], shape: tuple[int, ...]) -> Wrap:
    lanes = np.zeros(shape, dtype=bool)
    for wrap in wraps:
        try:
            lanes |= np.broadcast_to(wrap.lanes, shape)
        except ValueError:  # reshaped, or folded: which lane is no longer known
            lanes |= (
                wrap.lanes.reshape(shape) if wrap.lanes.size == lanes.size else wrap.lanes.any()
            )
    return Wrap(lanes, wraps[0].operation, wraps[0].place)


def _fits_64(operation: str, left: Array, right: Array, data: Array) -> Any:
    if operation == "*":
        about = np.multiply(left.astype(np.float64), right.astype(np.float64))
        return np.abs(about - data.astype(np.float64)) < 2.0**62
    if operation in "+-" and data.dtype.kind == "i":
        other = ~right if operation == "-" else right
        return ((left ^ data) & (other ^ data)) >= 0
    return True


# Their results are neither the pointer nor the number that they were given.
_SILENT = re.compile("load|store|atomic|cmp|print|assert|assume|barrier|gather$|scatter$")
# They put bits elsewhere and compute nothing.
_MOVES = frozenset(
    f"create_{name}"
    for name in (
        "bitcast broadcast cat expand_dims fabs join reshape select splat split trans unsplat"
        " int_to_ptr ptr_to_int make_tensor_descriptor make_block_ptr advance"
    ).split()
)
# They move the lanes of their first operand.
_SHAPES = frozenset(f"create_{name}" for name in ("reshape", "trans", "expand_dims", "broadcast"))
# Where numbers are meant to wrap (hashes), these bring them back into their range.
_CONFINES = frozenset({"create_urem", "create_lshr", "create_umulhi"})
_INTEGER = {
    "create_add": ("+", np.add),
    "create_sub": ("-", np.subtract),
    "create_mul": ("*", np.multiply),
    "create_shl": ("<<", np.left_shift),
}
