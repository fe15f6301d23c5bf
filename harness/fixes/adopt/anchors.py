"""Finds the release to which a diff applies, forwards or in reverse."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from harness.core.errors import UnfixError
from harness.fixes.adopt.fix_diff import DiffHunk, FileDiff, FixDiff
from harness.fixes.matching.toggle_status import ToggleState
from harness.releases.source_trees import SourceTree

CONTEXT_LINES = (99, 2, 1)  # lines around a change that must match: all, then fewer


@dataclass(frozen=True)
class LeftOutChange:
    """A change that is not part of the toggle, and why."""

    change: str
    reason: str


@dataclass(frozen=True)
class FixAnchor:
    """A release with both texts of each module that the diff changes."""

    tree: SourceTree
    state: ToggleState
    texts: dict[str, tuple[str, str]]  # module: with the fix, without it
    left_out: tuple[LeftOutChange, ...]


def find_anchor(patch: FixDiff, trees: Sequence[SourceTree], name: str) -> FixAnchor:
    """Find the release to which most hunks apply; of several, the nearest to the fix."""
    code = [file for file in patch.files if not file.exclusion_reason]
    left_out = tuple(
        LeftOutChange(file.path, file.exclusion_reason)
        for file in patch.files
        if file.exclusion_reason
    )
    if not code:
        reasons = "; ".join(f"{change.change}: {change.reason}" for change in left_out[:5])
        raise UnfixError(f"{name} changes nothing of SGLang's runtime: {reasons}")
    best: tuple[int, FixAnchor] | None = None
    # The oldest release with the fix and the newest without it are the nearest to the fix.
    attempts = [(tree, ToggleState.FIXED) for tree in trees] + [
        (t, ToggleState.BUGGY) for t in reversed(trees)
    ]
    for context in CONTEXT_LINES:
        for tree, state in attempts:
            hunk_count, texts, missed_hunks = _apply_files(code, tree, state, context)
            if hunk_count and (best is None or hunk_count > best[0]):
                best = hunk_count, FixAnchor(tree, state, texts, left_out + tuple(missed_hunks))
        if best is not None and best[0] == sum(len(file.hunks) for file in code):
            break
    if best is None:
        known = sum(tree.read(file.module) is not None for tree in trees for file in code)
        files = ", ".join(file.path for file in code[:3])
        raise UnfixError(
            f"{name} applies to none of {len(trees)} releases, forwards or backwards: "
            + (f"{files} differ in all of them" if known else f"none has {files}")
        )
    return best[1]


def _apply_files(
    files: Sequence[FileDiff], tree: SourceTree, state: ToggleState, context: int
) -> tuple[int, dict[str, tuple[str, str]], list[LeftOutChange]]:
    hunk_count = 0
    texts: dict[str, tuple[str, str]] = {}
    missed_hunks: list[LeftOutChange] = []
    for file in files:
        source = tree.read(file.module)
        release_lines = source.text.split("\n") if source else []
        other_lines = list(release_lines)
        for hunk in reversed(file.hunks):
            own_lines, new_lines, start = (
                (hunk.new, hunk.old, hunk.new_start)
                if state is ToggleState.FIXED
                else (hunk.old, hunk.new, hunk.old_start)
            )
            first, last = _trim_context(hunk, context)
            find = own_lines[first : len(own_lines) - last]
            position = _find_lines(release_lines, find, start - 1 + first)
            if position is None:
                reason = (
                    f"its lines are not in {tree.name}"
                    if source
                    else f"{tree.name} has no such module"
                )
                missed_hunks.append(LeftOutChange(f"{file.path}:{hunk.new_start}", reason))
                continue
            other_lines[position : position + len(find)] = new_lines[first : len(new_lines) - last]
            hunk_count += 1
        if other_lines != release_lines:
            pair = ("\n".join(release_lines), "\n".join(other_lines))
            texts[file.module] = pair if state is ToggleState.FIXED else (pair[1], pair[0])
    return hunk_count, texts, missed_hunks


def _trim_context(hunk: DiffHunk, context: int) -> tuple[int, int]:
    """Return how many lines of context to drop before and after the change."""
    before = _count_equal_lines(hunk.old, hunk.new)
    after = _count_equal_lines(hunk.old[before:][::-1], hunk.new[before:][::-1])
    return max(0, before - context), max(0, after - context)


def _count_equal_lines(old: Sequence[str], new: Sequence[str]) -> int:
    """Count the lines at the start that are the same."""
    pairs = zip(old, new, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _find_lines(lines: Sequence[str], hunk_lines: Sequence[str], near_line: int) -> int | None:
    """Find the index of these lines, nearest to a line; None if they are blank or missing."""
    if not any(line.strip() for line in hunk_lines):
        return None
    new_lines = [line.rstrip() for line in hunk_lines]
    first = new_lines[0]
    found = [
        at
        for at in range(len(lines) - len(new_lines) + 1)
        if lines[at].rstrip() == first
        and all(lines[at + n].rstrip() == line for n, line in enumerate(new_lines))
    ]
    return min(found, key=lambda at: abs(at - near_line), default=None)
