"""Each planted fault is reported by each back end, in the same words, and nothing else is."""

from __future__ import annotations

import re
from typing import Any

import pytest
from back_ends import BACK_ENDS, BackEnd, run_on_card
from fault_table import FAULTS, FaultLaunch

from harness.sanitizer.violations.kinds import ViolationKind
from harness.sanitizer.violations.targets import Target, list_kinds

TWO_PROGRAMS = re.compile(
    r"(\{other\}(?: reads| writes)?) and (\{unit\} \\\(1, 0, 0\\\)(?: reads| writes)?)"
)
ON_EACH = pytest.mark.parametrize(
    ("target", "launch"),
    [
        pytest.param(*each, id=name, marks=[pytest.mark.needs_cuda] * (name == "a card"))
        for name, each in BACK_ENDS.items()
    ],
)


@pytest.fixture(params=FAULTS)
def fault(request: Any) -> FaultLaunch:
    return FAULTS[request.param]


@ON_EACH
def test_a_fault_is_reported_where_its_kind_is_looked_for(
    target: Target, launch: BackEnd, fault: FaultLaunch
) -> None:
    if fault.kind not in list_kinds(target):
        if fault.kind is not ViolationKind.ASSERTION:  # which would end the process, on a card
            assert launch(fault, False) == []
        return
    found = launch(fault, False)
    has_order = launch is not run_on_card or "{other}" not in fault.headline
    headline = fault.headline
    if not has_order:  # of the programs on a card: either access may be the later one
        headline = "|".join((headline, TWO_PROGRAMS.sub(r"\2 and \1", headline)))
    unit = "program" if target in (Target.TRITON_CPU, Target.TRITON_GPU) else "block"
    other = rf"({unit} \(0, 0, 0\)|another {unit})"
    for report in found if fault.kind.name.endswith("READ") else found[:1]:
        assert re.fullmatch(headline.format(unit=unit, other=other), report.headline)
    first = found[0]
    if has_order:
        lines = (first.location.text, *first.location.inlined)
        assert any(line.endswith("FAULT") for line in lines)
        assert fault.program in (None, first.location.program)


@ON_EACH
def test_the_launch_beside_it_is_no_report(
    target: Target, launch: BackEnd, fault: FaultLaunch
) -> None:
    assert launch(fault, True) == []
