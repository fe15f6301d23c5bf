"""From targets and a release's sources to faults: made, told apart, useless ones dropped."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from harness.mutate import operators as known
from harness.mutate.code import Change, FunctionCode
from harness.mutate.operator import Operator
from harness.mutate.sameness import Changed, Original, changed
from harness.mutate.targets import functions_of
from harness.registry.schema import Target
from harness.store.mutate.faults import Dropped, Fault, Made, identity
from harness.syntax.scopes import Sources

A_STATEMENT = 3  # faults of one operator
ENOUGH = "the statement has enough faults of this kind"


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """A change that an operator would make, and what came of it."""

    operator: Operator
    function: FunctionCode
    change: Change
    index: int  # of the statement that holds it
    after: Changed  # the statement with it, or why it is no fault


def make(
    targets: Iterable[Target],
    sources: Sources,
    operators: Iterable[Operator] | None = None,
    only_lines: Mapping[str, set[int]] | None = None,
) -> Made:
    """Every fault of these operators in these targets, in the order of the source."""
    chosen = list(known.all().values() if operators is None else operators)
    faults: list[Fault] = []
    dropped: list[Dropped] = []
    seen: Counter[tuple[str, str]] = Counter()
    for function in functions_of(targets, sources):
        name = (function.module.source.module, function.qualname)
        seen[name] += 1
        lines = None if only_lines is None else only_lines.get(function.module.source.module, set())
        made, gone = _of_function(function, chosen, lines, seen[name])
        faults += made
        dropped += gone
    return Made(tuple(faults), tuple(dropped))


def _of_function(
    function: FunctionCode, operators: list[Operator], lines: set[int] | None, which: int
) -> tuple[list[Fault], list[Dropped]]:
    original = Original(function)
    alike = _alike(original, which)
    made: list[Tried] = []
    dropped: list[Dropped] = []
    first_of: dict[tuple[int, str], Tried] = {}
    for tried in _tried(original, operators, lines):
        why = tried.after.why
        if not why:
            first = first_of.setdefault((tried.index, tried.after.header), tried)
            if first is not tried:
                why = f"{first.operator.name} makes the same change"
        if why:
            dropped.append(_dropped(tried, why))
        else:
            made.append(tried)
    order = {operator.name: number for number, operator in enumerate(operators)}
    made.sort(key=lambda t: (t.change.start, t.change.end, order[t.operator.name], t.change.after))
    kept = _few(made)
    dropped += [_dropped(tried, ENOUGH) for tried in made if tried not in kept]
    return [_fault(tried, original, alike) for tried in kept], dropped


def _few(made: list[Tried]) -> list[Tried]:
    """Of one operator's faults in one statement a few that lie apart: the others are much the same.

    Statements and not lines are counted: how code is broken into lines decides nothing.
    """
    together: defaultdict[tuple[str, int], list[Tried]] = defaultdict(list)
    for tried in made:
        together[tried.operator.name, tried.index].append(tried)
    kept: set[int] = set()
    for group in together.values():
        last = len(group) - 1
        kept |= {id(group[round(last * n / (A_STATEMENT - 1))]) for n in range(A_STATEMENT)}
    return [tried for tried in made if id(tried) in kept]


def _tried(
    original: Original, operators: list[Operator], lines: set[int] | None
) -> Iterator[Tried]:
    """What the operators would change, in statements that have one of these lines."""
    function = original.function
    starts = [function.span(statement) for statement in function.statements]
    for operator in operators:
        for change in operator.find(function):
            index = max(n for n, (first, last) in enumerate(starts) if first <= change.start < last)
            if lines is None or lines & set(_lines(function.statements[index])):
                yield Tried(operator, function, change, index, changed(original, change, index))


def _alike(original: Original, which: int) -> list[str]:
    """Which of several statements that read the same each one is, in which of such functions."""
    seen: Counter[str] = Counter()
    numbers = []
    for header in original.headers:
        numbers.append(f"{seen[header]}" if which == 1 else f"{seen[header]} in {which}")
        seen[header] += 1
    return numbers


def _lines(statement: ast.stmt) -> range:
    """The lines of a statement, of a compound one its header's."""
    last = statement.end_lineno or statement.lineno
    body = getattr(statement, "body", None) or getattr(statement, "cases", None)
    if body:
        inner = body[0]
        begins = inner.pattern.lineno if isinstance(inner, ast.match_case) else inner.lineno
        last = max(statement.lineno, begins - 1)
    return range(statement.lineno, last + 1)


def _fault(tried: Tried, original: Original, alike: list[str]) -> Fault:
    function, change = tried.function, tried.change
    statement = original.headers[tried.index]
    after = f"{tried.after.header}\0{alike[tried.index]}"
    source = function.module.source
    lines = _lines(function.statements[tried.index])
    return Fault(
        id=identity(tried.operator.name, source.module, function.qualname, statement, after),
        operator=tried.operator.name,
        module=source.module,
        qualname=function.qualname,
        path=source.path,
        kernel=function.kernel,
        start=change.start,
        end=change.end,
        line=function.module.line(change.start),
        first=lines[0],
        last=lines[-1],
        before=function.module.text[change.start : change.end],
        after=change.after,
        words=" ".join(change.words.split()),
    )


def _dropped(tried: Tried, why: str) -> Dropped:
    function, change = tried.function, tried.change
    return Dropped(
        operator=tried.operator.name,
        module=function.module.source.module,
        qualname=function.qualname,
        line=function.module.line(change.start),
        before=function.module.text[change.start : change.end],
        after=change.after,
        why=why,
    )
