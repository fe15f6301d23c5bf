"""Access rules in kernels with the GPU's checks, run on this machine."""

from __future__ import annotations

import kernels_to_check as known
import torch
from cpu_runs import (
    int32_zeros,
    run_checked,
    run_on_cpu,  # noqa: F401
)
from hypothesis import given, settings
from hypothesis import strategies as st
from test_instrumentation import (
    compile_kernel,
)

from harness.checking import AccessRuleViolation, Violation
from harness.sanitizer.check import gpu_facts
from harness.sanitizer.check.tracked_memory import AccessRule, MemoryTracker
from harness.sanitizer.gpu import (
    DEFAULT_CHECKS,
    RULES_CHECK,
    access_rules,
    process_reports,
    report_buffer,
)
from harness.sanitizer.gpu.pointer_arguments import flatten_arguments
from harness.sanitizer.violations.kinds import FORBIDDEN, read_kind, to_word_bit


def test_outside_a_storage_bounds_report_and_no_access_rule() -> None:
    memory, rows = MemoryTracker(), torch.zeros((4, 8), dtype=torch.int32)
    memory.track_storage(rows).access_rules.append(
        AccessRule(rows, write=lambda _: None, read=None)
    )
    args, named = (int32_zeros(32), rows, 32, 0), {"BLOCK": 8}
    kernel_binary = compile_kernel(
        known.move_block, *args, checks=(*DEFAULT_CHECKS, RULES_CHECK), **named
    )
    pointers, scalars = flatten_arguments(known.move_block, args, named)
    launched = process_reports.LaunchRecord(
        "move_block", pointers, scalars, False, "", kernel_binary
    )

    def report_write(index: int) -> Violation | None:
        address = rows.data_ptr() + 4 * index
        record = report_buffer.DeviceReport(
            1, address, to_word_bit(FORBIDDEN["write"]), 3, 0, (0, 0, 0), (0, 0)
        )
        return gpu_facts.violation_from_record(record, launched, memory)

    assert isinstance(report_write(9), AccessRuleViolation)
    assert [report_write(index) for index in (-1, 32, 100)] == [None] * 3


INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=4)


@settings(deadline=None)
@given(
    allowed=st.lists(INTERVALS, min_size=4, max_size=4),
    shift=st.integers(-3, 12),
    verb=st.sampled_from(list(FORBIDDEN)),
)
def test_what_an_access_rule_forbids_a_program_is_reported_and_masked_off(
    allowed: list[list[tuple[int, int]]], shift: int, verb: str
) -> None:
    source, target = torch.arange(1, 41, dtype=torch.int32), int32_zeros(40)
    moved = target if verb == "write" else source
    spans = [
        sorted({at for first, many in intervals for at in range(first, min(first + many, 40))})
        for intervals in allowed
    ]
    start = moved.data_ptr()
    own = [[(start + 4 * at, start + 4 * at + 4) for at in indices] for indices in spans]
    lists = [(own, None), (None, None)] if verb == "read" else [(None, None), (None, own)]
    table = torch.from_numpy(access_rules.build_rule_table(lists, 0))
    table.copy_(torch.from_numpy(access_rules.build_rule_table(lists, table.data_ptr())))
    _, records = run_checked(
        known.move_block, (source, target, 30, shift), {"BLOCK": 8}, (2, 2), table.data_ptr()
    )
    expected, crossed = [0] * 40, False
    for program in range(4):
        row = [at + shift for at in range(8 * program, min(8 * program + 8, 30))]
        if all(0 <= at < 40 for at in row):  # else the tensor's bounds remove the check entirely
            crossed |= not set(row) <= set(spans[program])
            for at in set(row) & set(spans[program]):
                expected[at] = at + 1
    kinds = {read_kind(row[0]) for row in records if row[0]}
    assert kinds & set(FORBIDDEN.values()) == ({FORBIDDEN[verb]} if crossed else set())
    assert target.tolist() == expected
