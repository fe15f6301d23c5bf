"""The faults in the functions of a release: the operators' changes, except useless ones.

A change is dropped, with its reason, if the function does not compile with it or is the same code,
if an earlier operator makes the same change, or if its statement has enough faults of its operator.
Example: of seven removable addends in one statement the first, the fourth and the last are faults.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from harness.core.source_scopes import ReleaseSources
from harness.fixes.registry.schema import CodeTarget
from harness.runs.mutate.code_comparison import ChangedStatement, OriginalFunction
from harness.runs.mutate.cpp_code import CppFunctionCode, OriginalCppFunction
from harness.runs.mutate.function_code import CodeChange, FunctionCode
from harness.runs.mutate.mutation_operator import MutationOperator
from harness.runs.mutate.operators import load_operators
from harness.runs.mutate.target_selection import read_functions
from harness.store.mutate.faults import (
    DroppedFault,
    GeneratedFaults,
    MutationFault,
    compute_fault_id,
)

MAX_FAULTS_PER_STATEMENT = 3  # limit for each operator
TOO_MANY_REASON = "the statement has enough faults of this kind"
Original = OriginalFunction | OriginalCppFunction


@dataclass(frozen=True, slots=True, eq=False)
class CandidateFault:
    """An operator's change, and the changed statement."""

    operator: MutationOperator
    function: FunctionCode | CppFunctionCode
    change: CodeChange
    statement_index: int  # the index of the changed statement
    changed_statement: ChangedStatement  # the new statement, or the reason why it is no fault


def generate_faults(
    targets: Iterable[CodeTarget],
    sources: ReleaseSources,
    operators: Iterable[MutationOperator] | None = None,
    only_lines: Mapping[str, set[int]] | None = None,
) -> GeneratedFaults:
    """Generate every fault of these operators in these targets, in the order of the source."""
    chosen = list(load_operators().values() if operators is None else operators)
    faults: list[MutationFault] = []
    dropped: list[DroppedFault] = []
    seen: Counter[tuple[str, str]] = Counter()
    for function in read_functions(targets, sources):
        name = (function.module.source.module, function.qualname)
        seen[name] += 1
        lines = None if only_lines is None else only_lines.get(function.module.source.module, set())
        kept_here, dropped_here = _generate_in_function(function, chosen, lines, seen[name])
        faults += kept_here
        dropped += dropped_here
    return GeneratedFaults(tuple(faults), tuple(dropped))


def _generate_in_function(
    function: FunctionCode | CppFunctionCode,
    operators: list[MutationOperator],
    lines: set[int] | None,
    occurrence: int,
) -> tuple[list[MutationFault], list[DroppedFault]]:
    original: Original
    if isinstance(function, CppFunctionCode):
        original = OriginalCppFunction(function)
    else:
        original = OriginalFunction(function)
    numbers = _number_identical_statements(original, occurrence)
    useful: list[CandidateFault] = []
    dropped: list[DroppedFault] = []
    first_of: dict[tuple[int, str], CandidateFault] = {}
    for candidate in _iterate_candidates(original, operators, lines):
        reason = candidate.changed_statement.drop_reason
        if not reason:
            first = first_of.setdefault(
                (candidate.statement_index, candidate.changed_statement.header), candidate
            )
            if first is not candidate:
                reason = f"{first.operator.name} makes the same change"
        if reason:
            dropped.append(_make_dropped_fault(candidate, reason))
        else:
            useful.append(candidate)
    order = {operator.name: number for number, operator in enumerate(operators)}
    useful.sort(
        key=lambda t: (t.change.start, t.change.end, order[t.operator.name], t.change.replacement)
    )
    sampled = _sample_per_statement(useful)
    dropped += [
        _make_dropped_fault(candidate, TOO_MANY_REASON)
        for candidate in useful
        if candidate not in sampled
    ]
    return [_make_fault(candidate, original, numbers) for candidate in sampled], dropped


def _sample_per_statement(candidates: list[CandidateFault]) -> list[CandidateFault]:
    """Sample a few distant faults per operator and statement, since neighbours are much alike.

    Statements count and not lines, so that line breaks do not matter.
    """
    groups: defaultdict[tuple[str, int], list[CandidateFault]] = defaultdict(list)
    for candidate in candidates:
        groups[candidate.operator.name, candidate.statement_index].append(candidate)
    sampled_ids: set[int] = set()
    for group in groups.values():
        last = len(group) - 1
        sampled_ids |= {
            id(group[round(last * n / (MAX_FAULTS_PER_STATEMENT - 1))])
            for n in range(MAX_FAULTS_PER_STATEMENT)
        }
    return [candidate for candidate in candidates if id(candidate) in sampled_ids]


def _iterate_candidates(
    original: Original, operators: list[MutationOperator], lines: set[int] | None
) -> Iterator[CandidateFault]:
    """Yield the changes of the operators in statements with one of these lines."""
    function, spans = original.function, original.spans
    for operator in operators:
        for change in operator.iterate_changes(function):
            index = max(n for n, (first, last) in enumerate(spans) if first <= change.start < last)
            if lines is None or lines & set(original.get_lines(index)):
                yield CandidateFault(
                    operator, function, change, index, original.compile_change(change, index)
                )


def _number_identical_statements(original: Original, occurrence: int) -> list[str]:
    """Number each statement among the statements with its text, and its function likewise."""
    seen: Counter[str] = Counter()
    numbers = []
    for header in original.headers:
        numbers.append(f"{seen[header]}" if occurrence == 1 else f"{seen[header]} in {occurrence}")
        seen[header] += 1
    return numbers


def _make_fault(
    candidate: CandidateFault, original: Original, statement_numbers: list[str]
) -> MutationFault:
    function, change = candidate.function, candidate.change
    statement = original.headers[candidate.statement_index]
    after = f"{candidate.changed_statement.header}\0{statement_numbers[candidate.statement_index]}"
    source = function.module.source
    lines = original.get_lines(candidate.statement_index)
    return MutationFault(
        id=compute_fault_id(
            candidate.operator.name, source.module, function.qualname, statement, after
        ),
        operator=candidate.operator.name,
        module=source.module,
        qualname=function.qualname,
        path=source.path,
        kernel=function.is_kernel,
        start=change.start,
        end=change.end,
        line=function.module.get_line(change.start),
        first=lines[0],
        last=lines[-1],
        before=function.module.text[change.start : change.end],
        after=change.replacement,
        words=" ".join(change.description.split()),
    )


def _make_dropped_fault(candidate: CandidateFault, reason: str) -> DroppedFault:
    function, change = candidate.function, candidate.change
    return DroppedFault(
        operator=candidate.operator.name,
        module=function.module.source.module,
        qualname=function.qualname,
        line=function.module.get_line(change.start),
        before=function.module.text[change.start : change.end],
        after=change.replacement,
        why=reason,
    )
