"""An access of Triton's IR with its checks around it: what `checks` asks of it.

Invariant: a lane that a check finds wrong is reported and masked off, so that the kernel touches
no foreign memory; all other lanes do the same as before. The report is emitted outside the masked
block; otherwise the pipeliner would hoist it into iterations that never run, and Triton could not
pipeline the access as before. Example: `tl.store(out + at, 1, mask=at < n)` with 8 lanes, n = 8
and 6 elements becomes: compute where at + 1 > 6; report that; store with `(at < n) & ~outside`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from harness.sanitizer.checks import add_checks
from harness.sanitizer.checks.words import Lane, Mark, Question, Region
from harness.sanitizer.gpu.access_rows import AccessRows
from harness.sanitizer.gpu.access_rules import AccessRuleTable
from harness.sanitizer.gpu.accesses import get_verb, replace_mask
from harness.sanitizer.gpu.axis_contiguity import AxisContiguity
from harness.sanitizer.gpu.graph_builder import GraphBuilder
from harness.sanitizer.gpu.overflow_tracking import OverflowState, OverflowTracker
from harness.sanitizer.gpu.pointer_bounds import PointerBounds, PointerBoundsTracker
from harness.sanitizer.gpu.race_entries import RaceTables, TritonRaceEntries
from harness.sanitizer.gpu.report_emission import ReportEmitter
from harness.sanitizer.gpu.uninitialized_reads import find_poison, may_be_poison
from harness.sanitizer.ir.access_graph import find_mask, get_element_bytes
from harness.sanitizer.ir.graph import IROperation, IRValue, ValueType
from harness.sanitizer.ir.operation_sites import OperationSite
from harness.sanitizer.ir.operations import MASK_POSITIONS
from harness.sanitizer.violations.kinds import FORBIDDEN, ViolationKind, to_word_bit

_RULED_VERBS = {Mark.READ_EXCLUDED: "read", Mark.WRITE_EXCLUDED: "write"}
_VECTOR_BYTES = 16  # bytes that one instruction moves


@dataclass(slots=True)
class _PlaceReport:
    """What is wrong with where lanes go: a report's values, and the lanes to mask off."""

    word: IRValue | None = None
    address: IRValue | None = None
    operands: Sequence[IRValue] = ()
    pointer: IRValue | None = None  # that was asked about, if it is a row's
    wrong: IRValue | None = None


@dataclass(slots=True)
class AccessChecks:
    """What the checks of all accesses of a kernel share."""

    code: GraphBuilder
    emitter: ReportEmitter
    rows: AccessRows
    contiguity: AxisContiguity
    overflows: OverflowTracker
    bounds: PointerBoundsTracker
    rules: AccessRuleTable | None
    races: RaceTables | None
    kinds: frozenset[ViolationKind]
    report_bounds: bool  # whether a lane out of bounds is reported, or only masked off
    unchecked_accesses: Counter[str] = field(default_factory=Counter)  # by the reason

    def emit_access(self, operation: IROperation) -> None:
        """Emit an access between its checks."""
        access = _CheckedAccess(self, operation)
        add_checks(access)
        self.code.operations.append(access.operation)
        access.emit_reports_behind()


class _CheckedAccess(TritonRaceEntries):
    """An access of a block of lanes; `operation` is what it becomes."""

    may_order = False

    def __init__(self, checks: AccessChecks, operation: IROperation) -> None:
        super().__init__(checks.code, checks.emitter, checks.races)
        self.kinds, self.operation, self.verb = checks.kinds, operation, get_verb(operation)
        self._checks, self._pointer = checks, operation.operands[0]
        self._row = row = checks.rows.by_access.get(operation)
        self._checked = self._pointer if row is None else row.first_pointer
        self._enabled = find_mask(operation) if row is None else row.enabled
        self._bounds = checks.bounds.get_bounds(self._checked)
        if self._bounds is None:
            checks.unchecked_accesses["the tensor that its pointer points into is unknown"] += 1
        self._checked_address: IRValue | None = None
        self._report = _PlaceReport()
        self._behind: list[tuple[ViolationKind, Question[IRValue]]] = []

    def make_site(self) -> OperationSite:
        return self._checks.bounds.make_site(self.operation)

    # Where it goes

    @contextmanager
    def skip_reported_lanes(self) -> Iterator[None]:
        """Emit one report of all that is wrong with a lane, and mask the lane off."""
        self._report = report = _PlaceReport()
        yield
        if report.word is not None and report.address is not None:
            site = self._checks.bounds.make_site(self.operation, report.pointer)
            self.emitter.report(site, report.word, report.address, report.operands)
        if report.wrong is not None:
            self._mask_off(report.wrong)

    def marks(self, mark: Mark) -> Iterator[Question[IRValue]]:
        bounds, rules = self._checks.bounds, self._checks.rules
        if mark is Mark.OVERFLOWED:
            yield from self._find_overflows()
        elif mark is Mark.UNINITIALIZED and may_be_poison(self.operation):
            yield self._is_poison
        elif mark in _RULED_VERBS and rules is not None:
            number = bounds.get_pointer_number(self._pointer)
            if number is not None:
                size = get_element_bytes(self._pointer)
                verb = _RULED_VERBS[mark]
                yield lambda lane: rules.is_excluded(number, verb, lane.address, size)

    def _find_overflows(self) -> Iterator[Question[IRValue]]:
        """Yield the number of each lane's overflow, or 0; of a row its ends have the overflows."""
        overflows, row, report = self._checks.overflows, self._row, self._report
        state = overflows.merge_states(self._checked)
        last = overflows.merge_states(row.last_pointer, excluding=self._checked) if row else None
        if state is None and last is None:
            return
        report.address = self._get_checked_address()
        if row is not None and last is not None:
            state, report.address = self._merge_row_ends(
                state, report.address, last, row.last_pointer
            )
        assert state is not None
        word, *report.operands = overflows.to_report_state(state, self._enabled)
        yield lambda lane: word

    def _get_checked_address(self) -> IRValue:
        if self._checked_address is None:
            self._checked_address = self.code.get_address(self._checked)
        return self._checked_address

    def regions(self) -> list[Region[IRValue]]:
        if self._bounds is None:
            return []
        address, count = self._get_checked_address(), self._row.lane_count if self._row else 1
        size = get_element_bytes(self._pointer)
        return [self._checks.bounds.make_region(self._bounds, size, count, address.type.shape)]

    def report_place(self, kind: ViolationKind, question: Question[IRValue]) -> None:
        address, report = self._get_checked_address(), self._report
        answer = question(Lane(address, self._checked))
        report.pointer, report.address = self._checked, report.address or address
        if kind is ViolationKind.OVERFLOW:
            report.word = answer
            return
        outside = self.code.apply_mask(answer, self._enabled)
        assert self._bounds is not None
        if self._bounds.from_argument:
            report.wrong = outside
        if self._checks.report_bounds:
            bit = self.code.number_where(outside, to_word_bit(kind))
            if self._checks.bounds.origins[self._checked] is None:
                report.operands = self._select_report_operands(
                    report.word, report.operands, self._bounds, self._checked.type.shape
                )
            report.word = bit if report.word is None else self.code.binary("ori", report.word, bit)

    def report(self, kind: ViolationKind, question: Question[IRValue]) -> None:
        """Report lanes that a rule excludes; what is read is asked about behind the access."""
        code, report = self.code, self._report
        if kind not in FORBIDDEN.values():
            self._behind.append((kind, question))
            return
        if report.address is None:
            report.address = code.get_address(self._pointer)
        excluded = question(Lane(report.address, self._pointer))
        excluded = code.apply_mask(excluded, find_mask(self.operation))
        bit = code.number_where(excluded, to_word_bit(kind))
        report.word = bit if report.word is None else code.binary("ori", report.word, bit)
        wrong = report.wrong
        report.wrong = excluded if wrong is None else code.binary("ori", wrong, excluded)

    # What is there

    def emit_reports_behind(self) -> None:
        for kind, question in self._behind:
            found = question(Lane(self.code.get_address(self._pointer), self._pointer))
            word = self.code.number_where(found, to_word_bit(kind))
            self.emitter.report(self.make_site(), word, self._poison_address)

    def _is_poison(self, lane: Lane[IRValue]) -> IRValue:
        """Ask for any lane: the question behind an access is one of all."""
        found, self._poison_address = find_poison(
            self.code, self._checks.bounds, self.operation, lane.address
        )
        return found

    def clear_mark(self, mark: Mark) -> None:
        """Do nothing: an update replaces the poison itself."""

    # Parts of a report

    def _select_report_operands(
        self,
        word: IRValue | None,
        operands: Sequence[IRValue],
        bounds: PointerBounds,
        shape: tuple[int, ...],
    ) -> list[IRValue]:
        """Select a report's two numbers: an overflow's operands, else the bounds of the storage."""
        storage = self._checks.bounds.to_report_operands(bounds, shape)
        if word is None:
            return list(storage)
        overflows = self.code.is_nonzero(word)
        pairs = zip(operands, storage, strict=True)
        return [self.code.select(overflows, *pair) for pair in pairs]

    def _merge_row_ends(
        self,
        first_state: OverflowState | None,
        address: IRValue,
        last_state: OverflowState,
        last_pointer: IRValue,
    ) -> tuple[OverflowState, IRValue]:
        """Return the overflow of a row's first lane, or else of the last one, and its address."""
        code = self.code
        last_overflows = code.is_nonzero(last_state.word)
        reported = code.select(last_overflows, code.get_address(last_pointer), address)
        if first_state is None:
            return last_state, reported
        reported = code.select(code.is_nonzero(first_state.word), address, reported)
        return self._checks.overflows.merge_two(first_state, last_state), reported

    def _mask_off(self, wrong: IRValue) -> None:
        """Mask off the wrong lanes of the access: whole rows, or single lanes."""
        if self.operation.name not in MASK_POSITIONS:
            return
        code, mask, shape = self.code, find_mask(self.operation), self._pointer.type.shape
        by_lane = wrong.type.shape == shape
        hint = self._make_constancy_hint() if by_lane else {}
        right = code.negate(wrong, **hint)
        if not right.type.shape:
            right = code.splat(right, shape)
        elif not by_lane:
            right = code.emit("tt.broadcast", (right,), ValueType("i1", shape))
        right = right if mask is None else code.both(mask, right)
        self.operation = replace_mask(self.operation, right)

    def _make_constancy_hint(self) -> dict[str, str]:
        """Promise Triton that our mask is alike for the lanes that one instruction moves.

        Without it Triton would move each lane alone. It holds as long as no lane is out of bounds,
        which is why lanes that the kernel masks off count as inside; if one is, the first of the
        group decides for all.
        """
        pointer = self._pointer
        axis = self._checks.contiguity.find_contiguous_axis(pointer)
        if axis is None:
            return {}
        lanes = [1] * len(pointer.type.shape)
        lanes[axis] = min(_VECTOR_BYTES // get_element_bytes(pointer), pointer.type.shape[axis])
        listed = ", ".join(map(str, lanes))
        return {"tt.constancy": f"dense<[{listed}]> : tensor<{len(lanes)}xi32>"}
