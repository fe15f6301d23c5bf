"""Where a diff applies: the release in which its hunks are found, as they were or as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.adopt.patches import FileDiff, Hunk, Patch
from harness.errors import UnfixError
from harness.matching.states import State
from harness.releases.sources import SourceTree

CONTEXT = (99, 2, 1)  # lines around a change that must be the same: all, then fewer


@dataclass(frozen=True)
class Left:
    """What of a diff is no part of the toggle, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class Anchor:
    """A release with both texts of each module that the diff changes."""

    tree: SourceTree
    state: State
    texts: dict[str, tuple[str, str]]  # module: with the fix, without it
    left: tuple[Left, ...]


def anchor(patch: Patch, trees: Sequence[SourceTree], name: str) -> Anchor:
    """The release that takes most of the diff's hunks; of several the one nearest to the fix."""
    code = [file for file in patch.files if not file.why_not]
    left = tuple(Left(file.path, file.why_not) for file in patch.files if file.why_not)
    if not code:
        reasons = "; ".join(f"{one.what}: {one.why}" for one in left[:5])
        raise UnfixError(f"{name} changes nothing of SGLang's runtime: {reasons}")
    best: tuple[int, Anchor] | None = None
    # With the fix from the oldest on, without it from the newest: what is nearest comes first.
    tries = [(tree, State.FIXED) for tree in trees] + [(t, State.BUGGY) for t in reversed(trees)]
    for context in CONTEXT:
        for tree, state in tries:
            many, texts, missed = _applied(code, tree, state, context)
            if many and (best is None or many > best[0]):
                best = many, Anchor(tree, state, texts, left + tuple(missed))
        if best is not None and best[0] == sum(len(file.hunks) for file in code):
            break
    if best is None:
        known = sum(tree.read(file.module) is not None for tree in trees for file in code)
        files = ", ".join(file.path for file in code[:3])
        raise UnfixError(
            f"{name} applies to none of {len(trees)} releases, forwards or backwards: "
            + (f"{files} read otherwise in all of them" if known else f"none has {files}")
        )
    return best[1]


def _applied(
    files: Sequence[FileDiff], tree: SourceTree, state: State, context: int
) -> tuple[int, dict[str, tuple[str, str]], list[Left]]:
    many = 0
    texts: dict[str, tuple[str, str]] = {}
    missed: list[Left] = []
    for file in files:
        source = tree.read(file.module)
        here = source.text.split("\n") if source else []
        other = list(here)
        for hunk in reversed(file.hunks):
            there, wanted, start = (
                (hunk.new, hunk.old, hunk.new_start)
                if state is State.FIXED
                else (hunk.old, hunk.new, hunk.old_start)
            )
            first, last = _changed(hunk, context)
            find = there[first : len(there) - last]
            at = _at(here, find, start - 1 + first)
            if at is None:
                said = (
                    f"its lines are not in {tree.name}"
                    if source
                    else f"{tree.name} has no such module"
                )
                missed.append(Left(f"{file.path}:{hunk.new_start}", said))
                continue
            other[at : at + len(find)] = wanted[first : len(wanted) - last]
            many += 1
        if other != here:
            pair = ("\n".join(here), "\n".join(other))
            texts[file.module] = pair if state is State.FIXED else (pair[1], pair[0])
    return many, texts, missed


def _changed(hunk: Hunk, context: int) -> tuple[int, int]:
    """How many lines of context to leave away before and behind the change."""
    same = next(
        (n for n, (a, b) in enumerate(zip(hunk.old, hunk.new, strict=False)) if a != b),
        min(len(hunk.old), len(hunk.new)),
    )
    behind = next(
        (
            n
            for n, (a, b) in enumerate(zip(reversed(hunk.old), reversed(hunk.new), strict=False))
            if a != b
        ),
        min(len(hunk.old), len(hunk.new)),
    )
    behind = min(behind, min(len(hunk.old), len(hunk.new)) - same)
    return max(0, same - context), max(0, behind - context)


def _at(here: Sequence[str], find: Sequence[str], near: int) -> int | None:
    """Where these lines stand, the nearest of several; nowhere if there are none to find."""
    if not any(line.strip() for line in find):
        return None
    wanted = [line.rstrip() for line in find]
    first = wanted[0]
    found = [
        at
        for at in range(len(here) - len(wanted) + 1)
        if here[at].rstrip() == first
        and all(here[at + n].rstrip() == line for n, line in enumerate(wanted))
    ]
    return min(found, key=lambda at: abs(at - near), default=None)
