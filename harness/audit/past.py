"""Overruns run: a launch with the tensors that its function makes at their true size.

The whole grid runs where it is small, else its corners. One tensor has its size at a time, all
others room, so that what is stopped is what was asked about.
"""

from __future__ import annotations

import itertools
import json
import linecache
import os
import re
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from harness.audit.case import Case
from harness.audit.confirming import Watching
from harness.audit.expressions import words
from harness.audit.findings import CONFIRMED, Finding, Kind, Reach
from harness.audit.overruns import LOADS, Sized, Suspect, place_of, suspects
from harness.audit.rooms import room
from harness.audit.trials import TYPES
from harness.checking import OutOfBounds, virtual

_SECONDS = 4  # of the processor, for one suspect: its kernel compiled, and a few dozen launches
_MOST = 8  # suspects of one way to read a kernel
_WHOLE = 64  # programs of a grid that all run
PASSES = "passes"
_INDEX = re.compile(r"its index (-?\d+)")


def found(kernel: Any, case: Case, module: str) -> list[Finding]:
    """What goes past a tensor in launches that were seen to."""
    sized = Sized(case)
    if sized.unsettled:
        return []
    shown: list[Finding] = []
    for suspect in itertools.islice(suspects(sized), _MOST):
        said = aside(partial(least, kernel, sized, suspect), _SECONDS)
        load, index = said or (0, 0)
        if load:
            shown.append(_finding(sized, suspect, module, load, index))
    return shown


def _finding(sized: Sized, suspect: Suspect, module: str, load: int, index: int) -> Finding:
    case, access, launch = sized.case, suspect.access, sized.launch
    file, line = place_of(access)
    at, name = sized.again(suspect, load), suspect.name
    own = sorted(sized.own(name))
    size = sized.size(name, at)
    growing = [one for one in sized.growing(suspect) if one in own] or sized.growing(suspect)
    fixed = [f"{one} = {at[one]:,}" for one in own if one not in growing]
    quantity = case.limits.quantities.get(suspect.quantity)
    reaches = tuple(
        Reach(one.name, load)
        for one in case.limits.models
        if any(
            (name, place_of(access)) == (other, place_of(each))
            for each, other in sized.past(sized.launched(one.values, suspect.quantity, load))
        )
    )
    return Finding(
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
        f"{words(sized.sizes[name] or 0)}",
        launched=f"{launch.file}:{launch.line}" if launch is not None else "",
        confirmed=CONFIRMED,
        setting=quantity.setting if quantity else "",
        kind=Kind.OVERRUNS,
    )


class Launching:
    """One suspect's launches."""

    def __init__(self, kernel: Any, sized: Sized, suspect: Suspect) -> None:
        self._kernel, self._sized, self._suspect = kernel, sized, suspect
        self._lines = sized.lines_of(suspect.access)

    def outcome(self, at: Mapping[str, int]) -> int | str:
        """The index at which the access leaves its tensor in a program that runs, or what else."""
        file, line = place_of(self._suspect.access)
        error = launched(self._kernel, self._sized, at, {self._suspect.name}, self._lines)
        if error is None:
            return PASSES
        if isinstance(error, OutOfBounds) and error.place is not None:
            found = _INDEX.search(error.headline)
            if found and file.endswith(error.place.file) and error.place.line == line:
                return int(found[1])
        return str(error)


def launched(
    kernel: Any,
    sized: Sized,
    at: Mapping[str, int],
    exact: Collection[str],
    lines: Collection[tuple[str, int]] | None,
) -> Exception | None:
    """What stops a launch in which these tensors have their size; `lines`: what leads there."""
    grid = sized.grid(at)
    if 0 in grid:
        return None  # nothing is launched
    try:
        with Watching(lines or (), lines is None, sized.case) as session:
            session.run_these(kernel.fn.__name__, _chosen(grid))
            kernel[grid](**dict(_arguments(sized, at, exact)))
    except Exception as error:
        return error
    return None


def _arguments(
    sized: Sized, at: Mapping[str, int], exact: Collection[str]
) -> Iterator[tuple[str, Any]]:
    for one in sized.case.given:
        if one.kind == "constexpr":
            yield one.name, one.value
        elif one.is_pointer:
            kind = TYPES[one.kind[1:]]
            if one.name in exact:
                yield one.name, virtual((sized.size(one.name, at),), kind)
            else:
                yield one.name, room(one.name, kind)
        elif one.kind == "i1":
            yield one.name, one.value is not False
        elif one.kind[0] in "iu":
            yield one.name, sized.number(one.expression, at)
        else:
            yield one.name, 1.0


def _chosen(grid: tuple[int, ...]) -> list[tuple[int, ...]]:
    if grid[0] * grid[1] * grid[2] <= _WHOLE:
        return list(itertools.product(*map(range, grid)))
    ends = [sorted({0, max(0, side - 2), side - 1}) for side in grid]
    return list(itertools.product(*ends))


def least(kernel: Any, sized: Sized, suspect: Suspect) -> tuple[int, int]:
    """The least load that is seen to go past, and to which index; nothing where none is."""

    def goes(load: int) -> bool:
        return isinstance(launching.outcome(sized.again(suspect, load)), int)

    launching = Launching(kernel, sized, suspect)
    index = launching.outcome(suspect.at)
    if not isinstance(index, int) or not _whatever_else(kernel, sized, suspect):
        return 0, 0
    if not suspect.quantity:  # nothing grows: at this shape it goes past in any launch
        return 1, index
    low, high = 0, suspect.load
    for load in LOADS:
        if low < load < high and not goes(load):
            low = load
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if goes(middle) else (middle, high)
    index = launching.outcome(sized.again(suspect, high))
    below = launching.outcome(sized.again(suspect, low))
    # With nothing at all it may go past as well: no launch that is one is smaller.
    least = below == PASSES or (low == 0 and isinstance(below, int))
    return (high, index) if isinstance(index, int) and least else (0, 0)


def _whatever_else(kernel: Any, sized: Sized, suspect: Suspect) -> bool:
    """Whether it goes past with all else as small as can be: nothing of that is known."""
    for least in (1, 16) if sized.fixed.keys() - sized.own(suspect.name) else (1,):
        at = sized.foreign(suspect.at, suspect.name, least)
        try:
            other = sized.reread(kernel, at)
            found = next(
                access
                for access, name in other.past(at)
                if (name, place_of(access)) == (suspect.name, place_of(suspect.access))
            )
        except StopIteration:
            return False
        except Exception:  # no products of so few: Triton refuses them
            continue
        return isinstance(Launching(kernel, other, replace(suspect, access=found)).outcome(at), int)
    return False


def aside(work: Callable[[], Any], seconds: float) -> Any:
    """In a fork with a limit on its processor time; None where it ends otherwise."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 2)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            os.write(write, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None
