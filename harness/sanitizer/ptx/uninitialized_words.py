"""Uninitialized words of shared memory, on their way through products to what is stored.

Kernels load rows past their last one, so an uninitialized row is no fault by itself. As a float
it is no number, which stays visible; 8-bit integers and the low half of a tf32 have no such value.
Companion: `u` is not 0 if a value depends on such a word. Invariant: one that reaches global memory
is a report; shared memory that one is stored into counts as uninitialized again. Example:
uninitialized rows 8 to 15 of a tile make rows 8 to 15 of a product; if none is stored, there is no
report.
"""

from __future__ import annotations

from collections import defaultdict

from harness.sanitizer.ir.flow import map_control_flow_sources
from harness.sanitizer.ir.graph import IROperation, IRValue, KernelGraph
from harness.sanitizer.ptx.abi import PtxRegionField, RegionSpace
from harness.sanitizer.ptx.llvm_code import PtxFunction
from harness.sanitizer.ptx.operations import find_operation
from harness.sanitizer.ptx.thread_code import ThreadCode
from harness.sanitizer.violations.kinds import ViolationKind

_KINDS = {"s8", "u8", "tf32"}  # factors of which each word is a number


class UninitializedWords:
    """The values of a kernel that may depend on such words: none without a product of _KINDS."""

    def __init__(self, code: ThreadCode, graph: KernelGraph) -> None:
        self._code = code
        self._values = _find_dependents(graph) if any(map(_is_followed, graph.walk())) else set()
        code.companions["u"] = dict.fromkeys(self._values, "i32")

    def emit(self, operation: IROperation) -> None:
        """Pass the companions of an operation's operands on; matrix operations set their own."""
        if find_operation(operation.name).own_companions:
            return
        code = self._code
        for result in operation.results:
            if result in self._values:
                code.set_companion(result, "u", self._join_operands(operation))

    def _join_operands(self, operation: IROperation) -> str:
        code = self._code
        if operation.name != "ptx.selp":
            return code.join_companions(operation.operands, "u")
        *values, truth = operation.operands
        left, right = (code.join_companions([value], "u") for value in values)
        chosen = code.let(f"select i1 {code.get(truth, 1)}, i32 {left}, i32 {right}")
        return code.let(f"or i32 {chosen}, {code.join_companions([truth], 'u')}")


def _is_followed(operation: IROperation) -> bool:
    modifiers = operation.attributes.get("modifiers", "").split(".")
    return operation.name == "ptx.mma" and not _KINDS.isdisjoint(modifiers)


def _find_dependents(graph: KernelGraph) -> set[IRValue]:
    targets: dict[IRValue, list[IRValue]] = defaultdict(list)
    for target, sources in map_control_flow_sources(graph).items():
        for source in sources:
            targets[source].append(target)
    waiting: list[IRValue] = []
    for operation in graph.walk():
        if operation.name == "ptx.ldmatrix":
            waiting += operation.results
        elif not find_operation(operation.name).from_memory and (
            operation.name != "ptx.mma" or _is_followed(operation)
        ):
            for operand in operation.operands:
                targets[operand] += operation.results
    found: set[IRValue] = set()
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            waiting += targets[value]
    return found


def build_store_function() -> str:
    """Build the function for a store of such a value: it returns 1 with a report, or 0."""
    code = PtxFunction(
        "define i32 @ptx_store_uninitialized(ptr %context, ptr %frame, i64 %site, i64 %address,"
        " i64 %size, i32 %region)"
    )
    number, region = code.load_region()
    space = code.load_field(region, PtxRegionField.SPACE)
    with code.when(code.is_equal(space, RegionSpace.LOCAL), exits=True):
        code.emit("ret i32 0")
    with code.when(code.is_equal(space, RegionSpace.SHARED), exits=True):
        start = code.load_field(region, PtxRegionField.START)
        shadow = code.load_field(region, PtxRegionField.UNINITIALIZED)
        place = code.let(f"add i64 {shadow}, {code.let(f'sub i64 %address, {start}')}")
        code.fill_bytes(code.to_pointer(place), 1, "%size")
        code.emit("ret i32 0")
    kind = ViolationKind.UNINITIALIZED_PRODUCT
    code.fill_report(kind, "%site", address="%address", size="%size", region=number)
    code.emit("ret i32 1")
    return str(code)
