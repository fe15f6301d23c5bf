"""The checks of an access in LLVM, for `read`, `write` and `update`; compiled once.

Causes are checked before what follows from them: overflow, bounds, alignment, access rules,
initialization, races. The first violation fills the report, and the access does not happen.
"""

from __future__ import annotations

from harness.kernels.cpu.llvm_text import LlvmFunction
from harness.kernels.ptx.abi import (
    ContextField,
    FrameField,
    PtxRegionField,
    PtxViolationKind,
    RegionSpace,
)
from harness.kernels.ptx.thread_code import emit_report

ACCESS_FUNCTIONS = ("ptx_read", "ptx_write", "ptx_update", "ptx_classify")
_SMALLEST_ADDRESS = 1 << 16
_REGION = f"[{len(PtxRegionField)} x i64]"


def build_access_checks() -> str:
    parts = [_build_find(), _build_lookup(), _build_classify()]
    parts += [_AccessCheck(verb).function for verb in ("read", "write", "update")]
    return "\n".join(map(str, parts))


def _build_find() -> LlvmFunction:
    """Build the function that finds the region of an address by its number; 0 if there is none."""
    code = LlvmFunction("define internal i32 @ptx_find(ptr %context, i64 %address)")
    with code.when(code.let(f"icmp ult i64 %address, {_SMALLEST_ADDRESS}"), exits=True):
        code.emit("ret i32 0")
    table = code.to_pointer(code.load_field("%context", ContextField.REGIONS))
    with code.loop(code.load_field("%context", ContextField.REGION_COUNT)) as index:
        region = code.element_pointer(table, _REGION, index)
        start = code.load_field(region, PtxRegionField.START)
        end = code.load_field(region, PtxRegionField.END)
        after = code.let(f"icmp uge i64 %address, {start}")
        before = code.let(f"icmp ult i64 %address, {end}")
        with code.when(code.let(f"and i1 {after}, {before}"), exits=True):
            code.emit(f"ret i32 {code.let(f'trunc i64 {index} to i32')}")
    code.emit("ret i32 0")
    return code


def _build_lookup() -> LlvmFunction:
    """Build the same with the question to Python, which may add a region."""
    code = LlvmFunction("define internal i32 @ptx_lookup(ptr %context, i64 %address)")
    found = code.let("call i32 @ptx_find(ptr %context, i64 %address)")
    with code.when(code.let(f"icmp ne i32 {found}, 0"), exits=True):
        code.emit(f"ret i32 {found}")
    ask = code.to_pointer(code.load_field("%context", ContextField.FIND_REGION))
    code.emit(f"ret i32 {code.let(f'call i32 {ask}(i64 %address)')}")
    return code


def _build_classify() -> LlvmFunction:
    """Build the function that finds the region that a loaded pointer points into.

    A pointer among the parameters has its region in a table, since it may lie at a tensor's end.
    """
    code = LlvmFunction(
        "define i32 @ptx_classify(ptr %context, i64 %value, i64 %address, i1 %parameter)"
    )
    with code.when("%parameter"):
        base = code.load_field("%context", ContextField.PARAMETERS)
        offset = code.let(f"sub i64 %address, {base}")
        with code.when(code.let(f"icmp ult i64 {offset}, 32768"), exits=True):
            table = code.to_pointer(code.load_field("%context", ContextField.PARAMETER_REGIONS))
            region = code.load_field(table, code.let(f"lshr i64 {offset}, 3"))
            code.emit(f"ret i32 {code.let(f'trunc i64 {region} to i32')}")
    large = code.let(f"icmp ugt i64 %value, {1 << 40}")
    small = code.let(f"icmp ult i64 %value, {1 << 47}")
    with code.when(code.let(f"and i1 {large}, {small}"), exits=True):
        code.emit(f"ret i32 {code.let('call i32 @ptx_lookup(ptr %context, i64 %value)')}")
    code.emit(f"ret i32 {code.let('call i32 @ptx_find(ptr %context, i64 %value)')}")
    return code


class _AccessCheck:
    """The function for one verb: it returns 0, or 1 with the report filled."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.function = code = LlvmFunction(
            f"define i32 @ptx_{verb}(ptr %context, ptr %frame, i64 %site, i64 %address, i64 %size,"
            " i32 %given, i32 %state, ptr %new)"
        )
        self._code = code
        with code.when(code.let("icmp ne i32 %state, 0"), exits=True):
            number = code.let("zext i32 %state to i64")
            self._report(PtxViolationKind.OVERFLOW, code.let("zext i32 %given to i64"), number)
        slot = code.alloca("i32", "%given")
        with code.when(code.let("icmp eq i32 %given, 0")):
            code.store("i32", code.let("call i32 @ptx_lookup(ptr %context, i64 %address)"), slot)
        found = code.load("i32", slot)
        self._number = code.let(f"zext i32 {found} to i64")
        self._check_local_memory(found)
        table = code.to_pointer(code.load_field("%context", ContextField.REGIONS))
        self._region = code.element_pointer(table, _REGION, self._number)
        self._check_bounds()
        self._check_alignment()
        code.emit("ret i32 0")

    def _report(self, kind: PtxViolationKind, region: str, other: str = "0") -> None:
        emit_report(self._code, kind, "%site", "%address", "%size", region, other)
        self._code.emit("ret i32 1")

    def _field(self, field: PtxRegionField) -> str:
        return self._code.load_field(self._region, field)

    def _check_local_memory(self, found: str) -> None:
        """Allow an address of unknown origin anywhere in the thread's own memory."""
        code = self._code
        with code.when(code.let(f"icmp eq i32 {found}, 0"), exits=True):
            local = code.load_field("%frame", FrameField.LOCAL)
            size = code.load_field("%context", ContextField.LOCAL_SIZE)
            offset = code.let(f"sub i64 %address, {local}")
            inside = code.let(f"icmp ult i64 {offset}, {size}")
            with code.when(inside, exits=True):
                code.emit("ret i32 0")
            self._report(PtxViolationKind.OUT_OF_BOUNDS, "0")

    def _check_bounds(self) -> None:
        code = self._code
        is_local = code.let(
            f"icmp eq i64 {self._field(PtxRegionField.SPACE)}, {int(RegionSpace.LOCAL)}"
        )
        local = code.load_field("%frame", FrameField.LOCAL)
        base = code.let(f"select i1 {is_local}, i64 {local}, i64 0")
        self._address = code.let(f"sub i64 %address, {base}")
        start, end = self._field(PtxRegionField.START), self._field(PtxRegionField.END)
        last = code.let(f"sub i64 {code.let(f'sub i64 {end}, {start}')}, %size")
        offset = code.let(f"sub i64 {self._address}, {start}")
        outside = code.let(f"icmp ugt i64 {offset}, {last}")
        too_small = code.let(f"icmp slt i64 {last}, 0")
        with code.when(code.let(f"or i1 {outside}, {too_small}"), exits=True):
            self._report(PtxViolationKind.OUT_OF_BOUNDS, self._number)

    def _check_alignment(self) -> None:
        code = self._code
        rest = code.let(f"and i64 %address, {code.let('sub i64 %size, 1')}")
        with code.when(code.let(f"icmp ne i64 {rest}, 0"), exits=True):
            self._report(PtxViolationKind.MISALIGNED, self._number)
