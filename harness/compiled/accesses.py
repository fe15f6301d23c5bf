"""An access with its checks: bounds, wraps, fences.

What is outside of its tensor, or of a fence, is told and taken out; its report stands apart from
its mask, so that Triton can pipeline the access as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from harness.compiled.building import NE, Builder
from harness.compiled.fences import Fences
from harness.compiled.reaches import Reach, Reaches
from harness.compiled.rows import Rows
from harness.compiled.telling import Teller, Told
from harness.compiled.twins import Twin, Twins
from harness.compiled.vectors import Runs
from harness.kernels.graph import Kind, Operation, Value
from harness.native.lanes import Site

OUTSIDE = -(1 << 31)  # the bit of a report's word that is no wrap's number
# What each access does, and which of its operands is the mask.
ACCESSES = {
    "tt.load": ("read", 1),
    "tt.store": ("write", 2),
    "tt.atomic_rmw": ("update", 2),
    "tt.atomic_cas": ("update", None),
}
_VECTOR = 16  # bytes that one instruction moves


class Accesses:
    def __init__(
        self,
        code: Builder,
        teller: Teller,
        rows: Rows,
        runs: Runs,
        twins: Twins,
        reaches: Reaches,
        fences: Fences | None,
        places: dict[int, int],
        sites: list[Site],
        bounds: bool,
        tells: bool,
    ) -> None:
        """`places`: by parameter, the number of a pointer; `sites`: what is told of, in order.

        `tells`: what is outside is told as well as taken out.
        """
        self._code, self._teller, self._rows, self._runs = code, teller, rows, runs
        self._twins, self._reaches, self._fences = twins, reaches, fences
        self._places, self._bounds, self._tells = places, bounds, tells
        self._sites = sites
        self.unchecked: Counter[str] = Counter()

    def checked(self, operation: Operation) -> Operation:
        """The access as it is to be made, behind its checks."""
        code, pointer = self._code, operation.operands[0]
        verb, place = ACCESSES[operation.name]
        mask = masked_by(operation)
        row = self._rows.of.get(operation)
        here, on = (pointer, mask) if row is None else (row.first, row.on)
        twin = self._twins.united(here)
        last = self._twins.united(row.last, but=here) if row else None
        reach = self._reaches.of(here)
        if reach is None:
            self.unchecked["nobody knows what its pointer points into"] += 1
        bounds = self._bounds and reach is not None
        if twin is None and last is None and not bounds:
            return self._fenced(operation)
        address = far = code.emit("tt.ptr_to_int", (here,), here.kind.of("i64"))
        if row is not None and last is not None:
            twin, far = self._of_either(twin, address, last, row.last)
        word, *operands = (None,) if twin is None else self._twins.told(twin, on)
        bad = None
        if reach is not None and bounds:
            bad = self._reaches.outside(reach, address, size_of(operation), row.count if row else 1)
            bad = bad if on is None else code.binary("andi", on, bad)
        if reach is not None and bad is not None and self._tells:
            kind = here.kind.of("i32")
            outside = code.chosen(bad, code.constant(OUTSIDE, kind), code.constant(0, kind))
            if self._reaches.origins[here] is None:
                operands = self._which(word, operands, reach, here.kind.shape)
            word = outside if word is None else code.binary("ori", word, outside)
        if word is not None:
            origin = self._reaches.origins[here]
            own = None if origin is None else self._places[origin]
            self._sites.append(Site(verb, pointer.kind.pointee, operation.source, own))
            site = len(self._sites) - 1
            self._teller.tell(Told(site, operation.source, word, far, tuple(operands)))
        if reach is not None and reach.sure and bad is not None and place is not None:
            operation = _masked(operation, place, self._narrowed(pointer, mask, bad))
        return self._fenced(operation)

    def _fenced(self, operation: Operation) -> Operation:
        """Each lane by itself, where a launch has fences."""
        code, pointer = self._code, operation.operands[0]
        origin = self._reaches.origins[pointer]
        if self._fences is None or origin is None:
            return operation
        verb, place = ACCESSES[operation.name]
        mask = masked_by(operation)
        address = code.emit("tt.ptr_to_int", (pointer,), pointer.kind.of("i64"))
        number = self._places[origin]
        word = self._fences.crossed(verb, number, address, size_of(operation))
        if mask is not None:
            word = code.chosen(mask, word, code.constant(0, word.kind))
        self._sites.append(Site(verb, pointer.kind.pointee, operation.source, number))
        self._teller.tell(Told(len(self._sites) - 1, operation.source, word, address))
        if place is None:
            return operation
        bad = code.compare(NE, word, code.constant(0, word.kind))
        return _masked(operation, place, self._narrowed(pointer, mask, bad))

    def _which(
        self, word: Value | None, operands: Sequence[Value], reach: Reach, shape: tuple[int, ...]
    ) -> list[Value]:
        """What a report says besides: of a wrap its numbers, else what the pointer lies in."""
        lies = self._reaches.operands(reach, shape)
        if word is None:
            return list(lies)
        wrapped = self._code.compare(NE, word, self._code.constant(0, word.kind))
        both = zip(operands, lies, strict=True)
        return [self._code.chosen(wrapped, *one) for one in both]

    def _of_either(
        self, twin: Twin | None, address: Value, last: Twin, end: Value
    ) -> tuple[Twin, Value]:
        """Of a row: its first lane's twin, or its last one's, and where that lane is."""
        code = self._code
        there = code.emit("tt.ptr_to_int", (end,), address.kind)
        found = code.chosen(self._twins.holds(last), there, address)
        if twin is None:
            return last, found
        found = code.chosen(self._twins.holds(twin), address, found)
        return self._twins.either(twin, last), found

    def _narrowed(self, pointer: Value, mask: Value | None, bad: Value) -> Value:
        """The mask without what is outside: a whole row, or a lane that was looked at alone."""
        code, shape = self._code, pointer.kind.shape
        alone = bad.kind.shape == shape
        good = code.binary(
            "xori", bad, code.constant(1, bad.kind), **(self._together(pointer) if alone else {})
        )
        if not good.kind.shape:
            good = code.splat(good, shape)
        elif not alone:
            good = code.emit("tt.broadcast", (good,), Kind("i1", shape))
        return good if mask is None else code.binary("andi", mask, good)

    def _together(self, pointer: Value) -> dict[str, str]:
        """That neighbours which one instruction moves are on or off together, by our mask.

        It is true while no lane is outside, which is why lanes that are off count as inside. When
        one is, the first of them speaks for all; and Triton would move each lane alone without.
        """
        axis = self._runs.axis(pointer)
        if axis is None:
            return {}
        size = max(1, Kind(pointer.kind.pointee).bits // 8)
        lanes = [1] * len(pointer.kind.shape)
        lanes[axis] = min(max(1, _VECTOR // size), pointer.kind.shape[axis])
        listed = ", ".join(map(str, lanes))
        return {"tt.constancy": f"dense<[{listed}]> : tensor<{len(lanes)}xi32>"}


def _masked(operation: Operation, place: int, mask: Value) -> Operation:
    operands = (*operation.operands[:place], mask, *operation.operands[place + 1 :])
    attributes = operation.attributes
    if "operandSegmentSizes" in attributes:
        others = len(operands) - 1 - place
        attributes = {**attributes, "operandSegmentSizes": f"array<i32: {place}, 1, {others}>"}
    return replace(operation, operands=operands, attributes=attributes)


def masked_by(operation: Operation) -> Value | None:
    """The mask of an access, if it has one."""
    _, place = ACCESSES[operation.name]
    if place is None or len(operation.operands) <= place:
        return None
    return operation.operands[place]


def size_of(operation: Operation) -> int:
    kind = Kind(operation.operands[0].kind.pointee)
    return max(1, kind.bits // 8)
