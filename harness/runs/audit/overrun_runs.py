"""Overruns run: a launch with the tensors that its function makes at their true size.

The whole grid runs where it is small, else its corners. One tensor has its size at a time, all
others room, so that what is stopped is what was asked about.
"""

from __future__ import annotations

import itertools
import linecache
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from harness.checking import OutOfBounds, virtual_zeros
from harness.core.child_process import call_in_fork
from harness.runs.audit.expressions import render_expression
from harness.runs.audit.findings import CONFIRMED, AuditFinding, FindingKind, ModelThreshold
from harness.runs.audit.kernel_case import KernelCase
from harness.runs.audit.overflow_runs import SlicedCpuLauncher
from harness.runs.audit.overrun_analysis import (
    TRIED_LOADS,
    SizedCase,
    SuspectAccess,
    find_line_key,
    iterate_suspects,
)
from harness.runs.audit.probe_memory import reserve_memory
from harness.runs.audit.trial_launches import TORCH_TYPES

_SUSPECT_SECONDS = (
    4  # of the processor, for one suspect: its kernel compiled, and a few dozen launches
)
_MAX_SUSPECTS = 8  # suspects of one way to read a kernel
_MAX_WHOLE_GRID = 64  # programs of a grid that all run
PASSES = "passes"
_INDEX_PATTERN = re.compile(r"its index (-?\d+)")


def find_overruns(kernel: Any, case: KernelCase, module: str) -> list[AuditFinding]:
    """What goes past a tensor in launches that were seen to."""
    sized = SizedCase(case)
    if sized.unsettled_reason:
        return []
    shown: list[AuditFinding] = []
    for suspect in itertools.islice(iterate_suspects(sized), _MAX_SUSPECTS):
        said = call_in_fork(
            partial(find_least_load, kernel, sized, suspect),
            cpu_seconds=_SUSPECT_SECONDS,
            silent=True,
        )
        load, index = said or (0, 0)
        if load:
            shown.append(_make_finding(sized, suspect, module, load, index))
    return shown


def _make_finding(
    sized: SizedCase, suspect: SuspectAccess, module: str, load: int, index: int
) -> AuditFinding:
    case, access, launch = sized.case, suspect.access, sized.launch
    file, line = find_line_key(access)
    at, name = sized.make_values_at_load(suspect, load), suspect.parameter_name
    own = sorted(sized.find_size_words(name))
    size = sized.evaluate_size(name, at)
    growing = [
        one for one in sized.find_growing_words(suspect) if one in own
    ] or sized.find_growing_words(suspect)
    fixed = [f"{one} = {at[one]:,}" for one in own if one not in growing]
    quantity = case.limits.quantities.get(suspect.quantity)
    reaches = tuple(
        ModelThreshold(one.name, load)
        for one in case.limits.models
        if any(
            (name, find_line_key(access)) == (other, find_line_key(each))
            for each, other in sized.find_overruns(
                sized.make_launch_values(one.values, suspect.quantity, load)
            )
        )
    )
    return AuditFinding(
        kernel=case.graph.name,
        module=module,
        file=file,
        line=line,
        text=linecache.getline(file, line).strip(),
        element=name,
        access=access.name.removeprefix("tt."),
        access_line=line,
        quantity=suspect.quantity,
        threshold=load if quantity else 0,
        largest=quantity.largest if quantity else 1,
        shape=", ".join(fixed),
        grows=growing[0] if growing else "",
        value=load,
        model=reaches[0].model if reaches else "",
        reaches=reaches,
        arithmetic=f"index {index:,} of {name}, which has {size:,} elements: "
        f"{render_expression(sized.sizes[name] or 0)}",
        launched=f"{launch.file}:{launch.line}" if launch is not None else "",
        confirmed=CONFIRMED,
        setting=quantity.setting if quantity else "",
        kind=FindingKind.OVERRUNS,
    )


class OverrunLauncher:
    """One suspect's launches."""

    def __init__(self, kernel: Any, sized: SizedCase, suspect: SuspectAccess) -> None:
        self._kernel, self._sized, self._suspect = kernel, sized, suspect
        self._lines = sized.find_lines(suspect.access)

    def run(self, word_values: Mapping[str, int]) -> int | str:
        """The index at which the access leaves its tensor in a program that runs, or what else."""
        file, line = find_line_key(self._suspect.access)
        error = run_sized_launch(
            self._kernel, self._sized, word_values, {self._suspect.parameter_name}, self._lines
        )
        if error is None:
            return PASSES
        if isinstance(error, OutOfBounds) and error.location is not None:
            found = _INDEX_PATTERN.search(error.headline)
            if found and file.endswith(error.location.file) and error.location.line == line:
                return int(found[1])
        return str(error)


def run_sized_launch(
    kernel: Any,
    sized: SizedCase,
    word_values: Mapping[str, int],
    exact_tensors: Collection[str],
    lines: Collection[tuple[str, int]] | None,
) -> Exception | None:
    """What stops a launch in which these tensors have their size; `lines`: what leads there."""
    grid = sized.evaluate_grid(word_values)
    if 0 in grid:
        return None  # nothing is launched
    try:
        with SlicedCpuLauncher(lines or (), lines is None, sized.case) as session:
            session.run_only(kernel.fn.__name__, _choose_programs(grid))
            kernel[grid](**dict(_iterate_arguments(sized, word_values, exact_tensors)))
    except Exception as error:
        return error
    return None


def _iterate_arguments(
    sized: SizedCase, word_values: Mapping[str, int], exact_tensors: Collection[str]
) -> Iterator[tuple[str, Any]]:
    for one in sized.case.parameters:
        if one.kind == "constexpr":
            yield one.name, one.value
        elif one.is_pointer:
            kind = TORCH_TYPES[one.kind[1:]]
            if one.name in exact_tensors:
                yield one.name, virtual_zeros((sized.evaluate_size(one.name, word_values),), kind)
            else:
                yield one.name, reserve_memory(one.name, kind)
        elif one.kind == "i1":
            yield one.name, one.value is not False
        elif one.kind[0] in "iu":
            yield one.name, sized.evaluate(one.expression, word_values)
        else:
            yield one.name, 1.0


def _choose_programs(grid: tuple[int, ...]) -> list[tuple[int, ...]]:
    if grid[0] * grid[1] * grid[2] <= _MAX_WHOLE_GRID:
        return list(itertools.product(*map(range, grid)))
    ends = [sorted({0, max(0, side - 2), side - 1}) for side in grid]
    return list(itertools.product(*ends))


def find_least_load(kernel: Any, sized: SizedCase, suspect: SuspectAccess) -> tuple[int, int]:
    """The least load that is seen to go past, and to which index; nothing where none is."""

    def goes(load: int) -> bool:
        return isinstance(launching.run(sized.make_values_at_load(suspect, load)), int)

    launching = OverrunLauncher(kernel, sized, suspect)
    index = launching.run(suspect.word_values)
    if not isinstance(index, int) or not _is_independent_of_rest(kernel, sized, suspect):
        return 0, 0
    if not suspect.quantity:  # nothing grows: at this shape it goes past in any launch
        return 1, index
    low, high = 0, suspect.load
    for load in TRIED_LOADS:
        if low < load < high and not goes(load):
            low = load
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if goes(middle) else (middle, high)
    index = launching.run(sized.make_values_at_load(suspect, high))
    below = launching.run(sized.make_values_at_load(suspect, low))
    # With nothing at all it may go past as well: no launch that is one is smaller.
    least = below == PASSES or (low == 0 and isinstance(below, int))
    return (high, index) if isinstance(index, int) and least else (0, 0)


def _is_independent_of_rest(kernel: Any, sized: SizedCase, suspect: SuspectAccess) -> bool:
    """Whether it goes past with all else as small as can be: nothing of that is known."""
    for least in (
        (1, 16)
        if sized.fixed_values.keys() - sized.find_size_words(suspect.parameter_name)
        else (1,)
    ):
        at = sized.shrink_other_words(suspect.word_values, suspect.parameter_name, least)
        try:
            other = sized.reread(kernel, at)
            found = next(
                access
                for access, name in other.find_overruns(at)
                if (name, find_line_key(access))
                == (suspect.parameter_name, find_line_key(suspect.access))
            )
        except StopIteration:
            return False
        except Exception:  # no products of so few: Triton refuses them
            continue
        return isinstance(
            OverrunLauncher(kernel, other, replace(suspect, access=found)).run(at), int
        )
    return False
