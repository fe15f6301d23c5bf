"""Confirms overruns on this CPU, by launches with tensors of the size that their function makes.

Invariant: in each launch only the suspect's tensor has its true size, all others have room, so an
access that is stopped is the suspect. Example: `out = torch.empty(rows - 1, 64)` is written by
`rows` programs; at `rows = 1` the checker stops index 0 of a tensor of 0 elements, and the smallest
load is 1. A small grid runs as a whole, a larger one at its corners.
"""

from __future__ import annotations

import itertools
import linecache
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from harness.checking import OutOfBounds, virtual_zeros
from harness.core.child_process import call_in_fork
from harness.runs.audit.expressions import render_expression
from harness.runs.audit.findings import CONFIRMED, AuditFinding, FindingKind, ModelThreshold
from harness.runs.audit.kernel_case import KernelCase
from harness.runs.audit.overrun_analysis import SizedCase, SuspectAccess
from harness.runs.audit.probe_memory import reserve_memory
from harness.runs.audit.sliced_launch import SlicedCpuLauncher
from harness.runs.audit.trial_launches import PASSES, TORCH_TYPES
from harness.sanitizer.ir.graph import FileLine

# CPU seconds for one suspect: its kernel is compiled and launched a few dozen times.
_SUSPECT_SECONDS = 4
_MAX_SUSPECTS = 8  # suspects of one mode of a kernel
_MAX_WHOLE_GRID = 64  # programs of a grid that runs as a whole
_TRIED_LOADS = (1, 2, 3, 7, 33, 129, 1000, 4097)  # each leaves a remainder in some block size
_INDEX_PATTERN = re.compile(r"its index (-?\d+)")


def find_overruns(kernel: Any, case: KernelCase, module: str) -> list[AuditFinding]:
    """Find the accesses that were observed to leave a tensor."""
    sized = SizedCase(case)
    if sized.unsettled_reason:
        return []
    findings: list[AuditFinding] = []
    for suspect in itertools.islice(iterate_suspects(sized), _MAX_SUSPECTS):
        search = partial(find_least_load, kernel, sized, suspect)
        result = call_in_fork(search, cpu_seconds=_SUSPECT_SECONDS, silent=True)
        load, index = result or (0, 0)
        if load:
            findings.append(_make_finding(sized, suspect, module, load, index))
    return findings


def iterate_suspects(sized: SizedCase) -> Iterator[SuspectAccess]:
    """Iterate the suspects, each once: of the usual shape and of models', at the smallest load."""
    limits = sized.case.limits
    quantities = {own.name: own for word in sized.words if (own := sized.find_quantity(word))}
    growing = sorted(name for name, own in quantities.items() if own.size)
    seen: set[tuple[str, FileLine]] = set()
    tried: list[dict[str, int]] = []
    for shape in ({}, *(model.values for model in limits.models)):
        for load in _TRIED_LOADS:
            for quantity in growing or [""]:
                values = sized.make_launch_values(shape, quantity, load)
                if values in tried:
                    continue
                tried.append(values)
                for access, name in sized.find_overruns(values):
                    key = name, access.source.line_key
                    if key not in seen and sized.can_happen(values, name):
                        seen.add(key)
                        yield SuspectAccess(access, name, quantity, load, values)


def _make_finding(
    sized: SizedCase, suspect: SuspectAccess, module: str, load: int, index: int
) -> AuditFinding:
    case, access, launch = sized.case, suspect.access, sized.launch
    file, line = access.source.line_key
    values, name = sized.make_values_at_load(suspect, load), suspect.parameter_name
    size_words = sorted(sized.find_size_words(name))
    growing = sized.find_growing_words(suspect)
    growing = [word for word in growing if word in size_words] or growing
    fixed = [f"{word} = {values[word]:,}" for word in size_words if word not in growing]
    quantity = case.limits.quantities.get(suspect.quantity)
    reaches = tuple(
        ModelThreshold(model.name, load)
        for model in case.limits.models
        if suspect.is_among(
            sized.find_overruns(sized.make_launch_values(model.values, suspect.quantity, load))
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
        arithmetic=f"index {index:,} of {name}, which has {sized.evaluate_size(name, values):,} "
        f"elements: {render_expression(sized.sizes[name] or 0)}",
        launched=f"{launch.file}:{launch.line}" if launch is not None else "",
        confirmed=CONFIRMED,
        setting=quantity.setting if quantity else "",
        kind=FindingKind.OVERRUNS,
    )


class OverrunLauncher:
    """Launches of one suspect."""

    def __init__(self, kernel: Any, sized: SizedCase, suspect: SuspectAccess) -> None:
        self._kernel, self._sized, self._suspect = kernel, sized, suspect
        self._lines = sized.find_lines(suspect.access)

    def run(self, word_values: Mapping[str, int]) -> int | str:
        """Return the index at which the access leaves its tensor, or how else the launch ends."""
        file, line = self._suspect.access.source.line_key
        error = run_sized_launch(
            self._kernel, self._sized, word_values, {self._suspect.parameter_name}, self._lines
        )
        if error is None:
            return PASSES
        if isinstance(error, OutOfBounds) and error.location is not None:
            index = _INDEX_PATTERN.search(error.headline)
            if index and file.endswith(error.location.file) and error.location.line == line:
                return int(index[1])
        return str(error)


def run_sized_launch(
    kernel: Any,
    sized: SizedCase,
    word_values: Mapping[str, int],
    exact_tensors: Collection[str],
    lines: Collection[FileLine] | None,
) -> Exception | None:
    """Launch with these tensors at their size; return the error that stops it.

    The slice computes the addresses of these lines; without lines, those of every access.
    """
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
    for parameter in sized.case.parameters:
        name, kind, value = parameter.name, parameter.kind, parameter.value
        if parameter.is_pointer:
            dtype = TORCH_TYPES[kind[1:]]
            if name in exact_tensors:
                value = virtual_zeros((sized.evaluate_size(name, word_values),), dtype)
            else:
                value = reserve_memory(name, dtype)
        elif kind == "i1":
            value = value is not False
        elif kind != "constexpr":
            is_integer = kind[0] in "iu"
            value = sized.evaluate(parameter.expression, word_values) if is_integer else 1.0
        yield name, value


def _choose_programs(grid: tuple[int, ...]) -> list[tuple[int, ...]]:
    if prod(grid) <= _MAX_WHOLE_GRID:
        return list(itertools.product(*map(range, grid)))
    return list(itertools.product(*(sorted({0, max(0, side - 2), side - 1}) for side in grid)))


def find_least_load(kernel: Any, sized: SizedCase, suspect: SuspectAccess) -> tuple[int, int]:
    """Find the smallest load that leaves the tensor, and the index; zeros if none does."""
    launcher = OverrunLauncher(kernel, sized, suspect)

    def run_load(load: int) -> int | str:
        return launcher.run(sized.make_values_at_load(suspect, load))

    index = launcher.run(suspect.word_values)
    if not isinstance(index, int) or not _is_independent_of_rest(kernel, sized, suspect):
        return 0, 0
    if not suspect.quantity:  # nothing grows: any launch of this shape leaves the tensor
        return 1, index
    low, high = 0, suspect.load
    for load in _TRIED_LOADS:
        if low < load < high and not isinstance(run_load(load), int):
            low = load
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if isinstance(run_load(middle), int) else (middle, high)
    index, below = run_load(high), run_load(low)
    # A launch with a load of zero may leave the tensor as well: no real launch is smaller than 1.
    is_least = below == PASSES or (low == 0 and isinstance(below, int))
    return (high, index) if isinstance(index, int) and is_least else (0, 0)


def _is_independent_of_rest(kernel: Any, sized: SizedCase, suspect: SuspectAccess) -> bool:
    """Return whether the access leaves the tensor with all unrelated numbers minimal.

    A caller may relate such a number to the tensor's size in a way that the code does not show.
    """
    constants = sized.fixed_values.keys() - sized.find_size_words(suspect.parameter_name)
    for smallest in (1, 16) if constants else (1,):
        values = sized.shrink_other_words(suspect.word_values, suspect.parameter_name, smallest)
        try:
            other = sized.reread(kernel, values)
            overruns = list(other.find_overruns(values))
        except Exception:  # Triton refuses some small constants, such as a dot product of one lane
            continue
        for access, name in overruns:
            if suspect.is_among([(access, name)]):
                launcher = OverrunLauncher(kernel, other, replace(suspect, access=access))
                return isinstance(launcher.run(values), int)
        return False
    return False
