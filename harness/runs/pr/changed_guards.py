"""The guards that run changed lines, and their cells before the change and after it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path

from harness.core.outcomes import Outcome
from harness.core.wording import format_count
from harness.releases.source_trees import SourceTree
from harness.runs.mutate.line_coverage import GuardCoverage
from harness.runs.pr.source_change import LinesByModule
from harness.runs.pr.touched_items import find_functions
from harness.store.pr.part_results import GuardChange, TouchedItem, get_test_name
from harness.store.prove.values import CellResult

MAX_WORDS = 6  # of what a guard saw, in a sentence


def count_reached_lines(coverages: Iterable[GuardCoverage], lines: LinesByModule) -> dict[str, int]:
    """Count the lines among these that each guard runs; guards that run none are left out."""
    reached: dict[str, int] = {}
    for coverage in coverages:
        count = sum(
            len(numbers.intersection(coverage.lines.get(module, ())))
            for module, numbers in lines.items()
        )
        if count:
            name = get_test_name(coverage.guard)
            reached[name] = max(count, reached.get(name, 0))
    return reached


def list_touched_guards(
    coverages: Iterable[GuardCoverage], base: SourceTree, lines: LinesByModule
) -> list[TouchedItem]:
    """List the guards that run one of these lines of the base, without parameters."""
    coverages = list(coverages)
    touched = {
        name: TouchedItem(name, format_count(count, "changed line"), count)
        for name, count in count_reached_lines(coverages, lines).items()
    }
    for coverage in coverages:
        one = touched.get(get_test_name(coverage.guard))
        if one is not None:
            ran = {
                module: numbers.intersection(coverage.lines.get(module, ()))
                for module, numbers in lines.items()
            }
            functions = {f"{module}:{name}" for module, name in find_functions(base, ran)}
            one.runs = sorted({*one.runs, *functions})
            one.seconds += coverage.seconds
    return list(touched.values())


def resolve_nodes(names: Iterable[str], folder: Path) -> list[str]:
    """Return node ids with absolute paths, as pytest takes them in any folder."""
    nodes = []
    for name in sorted(names):
        file, colons, rest = name.partition("::")
        nodes.append(f"{folder / file}{colons}{rest}")
    return nodes


def compare_cells(cells: Iterable[CellResult], base: str, head: str) -> list[GuardChange]:
    """Pair the cells of both ends; those that changed come first."""
    pairs: dict[tuple[str, str], dict[str, CellResult]] = {}
    for cell in cells:
        pairs.setdefault((cell.guard, cell.toggle), {})[cell.release] = cell
    changes = [
        _compare_pair(guard, toggle, pair.get(base), pair.get(head))
        for (guard, toggle), pair in sorted(pairs.items())
    ]
    return sort_changes(changes)


def sort_changes(changes: Iterable[GuardChange]) -> list[GuardChange]:
    """Sort the worst first."""
    return sorted(changes, key=lambda one: (not one.is_lost, not one.fails_now, not one.difference))


def fill_plain_outcomes(
    changes: Iterable[GuardChange],
    before: Iterable[GuardCoverage],
    after: Iterable[GuardCoverage],
) -> None:
    """Fill in how a guard ended as it is where its cell has no such side.

    A cell whose toggle is stale has none: a fix taken back in other words shows here alone.
    """
    earlier, later = ({one.guard: one for one in coverages} for coverages in (before, after))
    for change in changes:
        if not change.plain_before and change.guard in earlier:
            change.plain_before = earlier[change.guard].outcome.value
        if not change.plain_after and change.guard in later:
            change.plain_after = later[change.guard].outcome.value
            if change.fails_now:
                change.headline = later[change.guard].headline
                change.example = later[change.guard].example


def compare_plain_tests(
    before: Iterable[GuardCoverage],
    after: Iterable[GuardCoverage],
    names: Iterable[str],
    proven: Iterable[GuardChange],
) -> list[GuardChange]:
    """Compare the outcomes of tests that have no cell, as they name no toggle of the release."""
    with_cells = {get_test_name(one.guard) for one in proven}
    wanted = set(names) - with_cells
    later = {one.guard: one for one in after}
    changes = []
    for coverage in before:
        if get_test_name(coverage.guard) in wanted:
            now = later.get(coverage.guard)
            outcome = now.outcome.value if now is not None else ""
            changes.append(
                GuardChange(
                    guard=coverage.guard,
                    toggle="",
                    before=coverage.outcome.value,
                    after=outcome,
                    plain_before=coverage.outcome.value,
                    plain_after=outcome or "not collected",
                    headline=now.headline if now is not None and outcome != "passed" else "",
                    example=now.example if now is not None else [],
                    difference=_describe_difference(coverage, now) if now is not None else "",
                )
            )
    return changes


def _describe_difference(before: GuardCoverage, after: GuardCoverage) -> str:
    """Describe the first difference of what a passing guard saw; its draws are the same."""
    if {before.outcome, after.outcome} != {Outcome.PASSED}:
        return ""
    lines = before.observed.split("\n"), after.observed.split("\n")
    for old, new in zip_longest(*map(list, lines), fillvalue=""):
        if old != new:
            return _describe_words(old.split(), new.split())
    return ""


def _describe_words(old: list[str], new: list[str]) -> str:
    """Describe where two lines part."""
    same = [ours == theirs for ours, theirs in zip(old, new, strict=False)]
    at = same.index(False) if False in same else len(same)
    before, after = (" ".join(words[at : at + MAX_WORDS]) or "nothing" for words in (old, new))
    return f"{' '.join(old[:2])} word {at + 1} on is {before} before and {after} now"


def _compare_pair(
    guard: str, toggle: str, before: CellResult | None, after: CellResult | None
) -> GuardChange:
    change = GuardChange(
        guard=guard,
        toggle=toggle,
        before=_get_verdict(before),
        after=_get_verdict(after),
        plain_before=_get_plain_outcome(before),
        plain_after=_get_plain_outcome(after),
        why=after.why if after is not None else "",
    )
    if after is not None:
        side = after.sides.get(after.state)
        if side is not None and side.outcome is Outcome.PASSED:
            side = after.sides.get("fixed")
        if side is not None and side.outcome is not Outcome.PASSED:
            change.headline, change.example = side.headline, side.example
    return change


def _get_verdict(cell: CellResult | None) -> str:
    return cell.verdict.value if cell is not None and cell.verdict is not None else ""


def _get_plain_outcome(cell: CellResult | None) -> str:
    """Return the outcome of the side that is the release as it is."""
    if cell is None or cell.state not in cell.sides:
        return ""
    return cell.sides[cell.state].outcome.value
