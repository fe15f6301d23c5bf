"""A three-way merge by tokens: ports an edit from one version of a definition to another.

The versions are aligned line by line, and token by token in lines that differ. A hunk is placed
where the target has the tokens that it removes, or the tokens around it; names are replaced by
their counterparts in the target.

Invariant: a hunk without a unique place raises PortError. Example: before `w = rows * topk`, after
`w = rows`, target `w = max_rows * topk`: the hunk removes `* topk`, `rows` aligns with `max_rows`,
and the result is `w = max_rows`.
"""

from __future__ import annotations

import difflib
import keyword
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from harness.fixes.adopt.code_tokens import NEWLINE, CodeToken, PortError, split_lines, to_texts

CONTEXT_TOKENS = 6  # compared tokens on each side of an edit
MIN_CONTEXT = 6  # tokens of the twelve that the target must have
MIN_CONTEXT_ONE_SIDED = 8  # as many, where one side's next token is missing
MAX_DISTANCE = 12  # tokens that the target may have inserted in between
MAX_SLIDE = 12
MIN_RATIO_BETWEEN_ENDS = 0.7  # share of removed tokens required between both ends
MIN_RATIO_REMOVED = 0.5  # share of removed tokens required
MIN_RATIO_PAIRED_LINES = 0.5  # share of equal tokens in two paired lines
MAX_LINE_PAIRS = 40_000  # pairs compared at most: a fraction of a second
OTHER_CODE_MESSAGE = "other code stands where the edit would put its own"


class DuplicateTargetError(PortError):
    """The code to remove occurs twice; removing one may have no effect."""


@dataclass
class TokenAlignment:
    """For each token of one text, its counterpart in the other text, if any."""

    counterparts: list[int | None]
    renames: dict[str, str] = field(default_factory=dict)  # this name: the other text's


def align_tokens(ours: Sequence[CodeToken], theirs: Sequence[CodeToken]) -> TokenAlignment:
    found = TokenAlignment([None] * len(ours))
    mine, its = split_lines(ours), split_lines(theirs)
    compared = difflib.SequenceMatcher(
        None,
        [to_texts(ours[a:b]) for a, b in mine],
        [to_texts(theirs[a:b]) for a, b in its],
        autojunk=False,
    )
    for kind, a, b, c, d in compared.get_opcodes():
        if kind == "equal":
            for offset in range(mine[b - 1][1] - mine[a][0]):
                found.counterparts[mine[a][0] + offset] = its[c][0] + offset
        elif kind == "replace":
            bags = ([Counter(to_texts(ours[m:n])) for m, n in mine[a:b]],
                    [Counter(to_texts(theirs[m:n])) for m, n in its[c:d]])  # fmt: skip
            for our_line, their_line in _pair_lines(*bags, 0, b - a, 0, d - c):
                _align_lines(ours, theirs, (*mine[a + our_line], *its[c + their_line]), found)
    return found


def _pair_lines(
    ours: list[Counter[str]], theirs: list[Counter[str]], a: int, b: int, c: int, d: int
) -> Iterator[tuple[int, int]]:
    """Pair changed lines: the most similar pair, with pairs before and after it."""
    if (b - a) * (d - c) > MAX_LINE_PAIRS:
        return
    best, pair = MIN_RATIO_PAIRED_LINES, None
    for our_line in range(a, b):
        for their_line in range(c, d):
            shared_tokens = (ours[our_line] & theirs[their_line]).total()
            alike = 2 * shared_tokens / (ours[our_line].total() + theirs[their_line].total())
            if alike * shared_tokens**0.5 > best and alike > MIN_RATIO_PAIRED_LINES:
                best, pair = alike * shared_tokens**0.5, (our_line, their_line)
    if pair is not None:
        yield from _pair_lines(ours, theirs, a, pair[0], c, pair[1])
        yield pair
        yield from _pair_lines(ours, theirs, pair[0] + 1, b, pair[1] + 1, d)


def _align_lines(
    ours: Sequence[CodeToken],
    theirs: Sequence[CodeToken],
    spans: tuple[int, int, int, int],
    alignment: TokenAlignment,
) -> None:
    first, last, start, end = spans
    compared = difflib.SequenceMatcher(
        None,
        [token.text for token in ours[first:last]],
        [token.text for token in theirs[start:end]],
        autojunk=False,
    )
    for kind, a, b, c, d in compared.get_opcodes():
        if kind == "equal" or (kind == "replace" and b - a == d - c):
            for offset in range(b - a):
                our_token, their_token = ours[first + a + offset], theirs[start + c + offset]
                if kind == "equal":
                    alignment.counterparts[first + a + offset] = start + c + offset
                elif our_token.is_name and their_token.is_name:
                    alignment.counterparts[first + a + offset] = start + c + offset
                    alignment.renames.setdefault(our_token.text, their_token.text)


@dataclass(frozen=True, slots=True)
class MergedEdit:
    """A definition with the edit applied, and how exact the merge is."""

    tokens: list[CodeToken]
    similarity: float  # share of the definition's tokens in the target
    renames: dict[str, str]
    is_inexact: bool  # the removed code differs from the original
    missing_count: int = 0  # missing ones among equal hunks
    imported_names: tuple[str, ...] = ()  # names that the edit imports


TokenHunk = tuple[int, int, int, int]


def merge_edit(
    before: Sequence[CodeToken], after: Sequence[CodeToken], target: Sequence[CodeToken]
) -> MergedEdit:
    """Apply the edit from `before` to `after` to `target`.

    Of several hunks with the same removed and added tokens, some may be missing in the target.
    """
    alignment = align_tokens(before, target)
    replacements: list[tuple[int, int, list[CodeToken]]] = []
    is_inexact = False
    used_renames: dict[str, str] = {}
    placed: set[tuple[tuple[str, ...], tuple[str, ...]]] = set()
    errors_by_change: dict[tuple[tuple[str, ...], tuple[str, ...]], list[PortError]] = {}
    for hunk in reversed(find_hunks(align_tokens(before, after), before, after)):
        change = min(
            (to_texts(before[i1:i2]), to_texts(after[j1:j2]))
            for i1, i2, j1, j2 in iterate_slides(hunk, before, after)
        )
        try:
            (i1, i2, j1, j2), k1, k2 = _place_hunk(hunk, alignment, before, after, target)
        except PortError as error:
            errors_by_change.setdefault(change, []).append(error)
            continue
        removed, present = list(to_texts(before[i1:i2])), list(to_texts(target[k1:k2]))
        names = alignment.renames
        one_sided = not removed and (
            alignment.counterparts[i1 - 1] is None
            or i2 == len(before)
            or alignment.counterparts[i2] is None
        )
        if one_sided or ([names.get(t, t) for t in removed] != present and removed != present):
            is_inexact = True
        new = [replace(t, text=names.get(t.text, t.text)) if t.is_name else t for t in after[j1:j2]]
        used = {t.text for t in (*before[i1:i2], *after[j1:j2])}
        used_renames |= {name: names[name] for name in used if name in names}
        if not removed and _is_present(new, before, target, alignment, i1, k1):
            errors_by_change.setdefault(change, []).append(
                PortError("what the edit puts in stands there already")
            )
            continue
        if not new and _count_in_line(removed, before, i1) < _count_in_line(present, target, k1):
            raise DuplicateTargetError(
                "what the edit takes out stands there twice: one alone may do nothing"
            )
        replacements.append((k1, k2, new))
        placed.add(change)
    for change, errors in errors_by_change.items():
        if change not in placed:
            raise errors[0]
    result = list(target)
    replacements.sort(key=lambda replacement: replacement[:2])
    if any(end > start for (_, end, _), (start, _, _) in pairwise(replacements)):
        raise PortError("two parts of the edit meet in one place")
    for k1, k2, new in reversed(replacements):
        result[k1:k2] = new
    if to_texts(result) == to_texts(target):
        raise PortError("the edit changes nothing there")
    same = sum(1 for at in alignment.counterparts if at is not None)
    missing_count = sum(len(errors) for errors in errors_by_change.values())
    return MergedEdit(result, same / max(1, len(before)), used_renames, is_inexact, missing_count)


def _count_in_line(run: Sequence[str], text: Sequence[CodeToken], index: int) -> int:
    """Count a run of tokens in the line that contains an index."""
    line = next((to_texts(text[a:b]) for a, b in split_lines(text) if a <= index < b), ())
    return sum(line[n : n + len(run)] == tuple(run) for n in range(len(line)))


def has_edit_already(
    before: Sequence[CodeToken], after: Sequence[CodeToken], target: Sequence[CodeToken]
) -> bool:
    """Return whether new lines of `target` already contain all that the edit adds."""
    alignment = align_tokens(before, target)
    return any(
        _is_present(after[j1:j2], before, target, alignment, i1, len(target))
        for i1, i2, j1, j2 in find_hunks(align_tokens(before, after), before, after)
        if i1 == i2
    )


def _is_present(
    new: Sequence[CodeToken],
    before: Sequence[CodeToken],
    target: Sequence[CodeToken],
    alignment: TokenAlignment,
    index: int,
    target_index: int,
) -> bool:
    """Return whether the edit's line, or a new line of the target, contains the added names."""
    names = {token.text for token in new if token.is_name} - set(keyword.kwlist)
    if not names:
        return False
    lines = split_lines(target)
    aligned = {n for n in alignment.counterparts if n is not None}
    new_lines = [set(to_texts(target[a:b])) for a, b in lines if aligned.isdisjoint(range(a, b))]
    line_of_edit = next(
        (to_texts(before[a:b]) for a, b in split_lines(before) if a <= index < b), ()
    )
    line_at_target = next(
        (set(to_texts(target[a:b])) for a, b in lines if a <= target_index < b), set()
    )
    new_names = names - set(line_of_edit)
    return any(names <= line for line in new_lines) or bool(
        new_names and new_names <= line_at_target
    )


def _place_hunk(
    hunk: TokenHunk,
    alignment: TokenAlignment,
    before: Sequence[CodeToken],
    after: Sequence[CodeToken],
    target: Sequence[CodeToken],
) -> tuple[TokenHunk, int, int]:
    """Place a hunk or an equivalent shifted one: in `a and x and b`, `and x` equals `x and`."""
    first: PortError | None = None
    for slide in iterate_slides(hunk, before, after):
        try:
            inside = NEWLINE not in to_texts(after[slide[2] : slide[3]])
            return slide, *_locate_run(alignment, before, target, slide[0], slide[1], inside)
        except PortError as error:
            first = first or error
    raise first or PortError("it has no place")


def iterate_slides(
    hunk: TokenHunk, before: Sequence[CodeToken], after: Sequence[CodeToken]
) -> Iterator[TokenHunk]:
    yield hunk
    i1, i2, j1, j2 = hunk
    if (i1 == i2) == (j1 == j2):
        return
    text, first, last = (before, i1, i2) if i2 > i1 else (after, j1, j2)
    if text is after and NEWLINE in to_texts(after[j1:j2]):
        return  # a new statement between two existing ones has one place
    for step in range(1, MAX_SLIDE):
        if first - step < 0 or text[first - step].text != text[last - step].text:
            break
        yield i1 - step, i2 - step, j1 - step, j2 - step
    for step in range(MAX_SLIDE):
        if last + step >= len(text) or text[first + step].text != text[last + step].text:
            break
        yield i1 + step + 1, i2 + step + 1, j1 + step + 1, j2 + step + 1


def find_hunks(
    alignment: TokenAlignment, before: Sequence[CodeToken], after: Sequence[CodeToken]
) -> list[tuple[int, int, int, int]]:
    """Find the runs of tokens that differ."""
    result = []
    i = j = 0
    anchors = [
        (n, at)
        for n, at in enumerate(alignment.counterparts)
        if at is not None and before[n].text == after[at].text
    ]
    for a, b in [*anchors, (len(before), len(after))]:
        if a > i or b > j:
            result.append((i, a, j, b))
        i, j = a + 1, b + 1
    return result


def _locate_run(
    alignment: TokenAlignment,
    before: Sequence[CodeToken],
    target: Sequence[CodeToken],
    i1: int,
    i2: int,
    within_line: bool,
) -> tuple[int, int]:
    """Locate tokens i1 to i2 in the target, by themselves or by the tokens around them."""
    prior = alignment.counterparts[i1 - 1] if i1 else -1
    following = alignment.counterparts[i2] if i2 < len(before) else len(target)
    removed_span = _locate_removed(alignment, before, target, i1, i2)
    if removed_span is not None:
        start, end = removed_span
    elif prior is not None and following is not None and prior < following:
        start, end = prior + 1, following
        removed, present = to_texts(before[i1:i2]), to_texts(target[start:end])
        if bool(removed) != bool(present):
            raise PortError(
                "what the edit takes out does not stand there" if removed else OTHER_CODE_MESSAGE
            )
        if removed and _measure_ratio(removed, present) < MIN_RATIO_REMOVED:
            raise PortError("what the edit takes out does not stand there")
    elif within_line and (known := _locate_by_landmark(before, target, i1, i2)) is not None:
        return known
    elif i1 == i2 and within_line and (prior is not None or following is not None):
        start = end = prior + 1 if prior is not None else following or 0
    else:
        raise PortError("what stands around the edit is gone")
    is_context_near = [
        at is not None and abs(at - at_least) < MAX_DISTANCE
        for step, edge, base in ((-1, i1 - 1, start - 1), (1, i2, end))
        for n in range(CONTEXT_TOKENS)
        if 0 <= edge + step * n < len(before)
        for at, at_least in ((alignment.counterparts[edge + step * n], base + step * n),)
    ]
    one_side = i1 == i2 and (prior is None or following is None)
    if sum(is_context_near) < min(
        MIN_CONTEXT_ONE_SIDED if one_side else MIN_CONTEXT, len(is_context_near)
    ):
        raise PortError("too little of what stands around the edit is there")
    return start, end


def _locate_by_landmark(
    before: Sequence[CodeToken], target: Sequence[CodeToken], i1: int, i2: int
) -> tuple[int, int] | None:
    """Locate an edit after a run of tokens that occurs once in both texts."""
    start = i1 - MIN_CONTEXT
    mark = to_texts(before[start:i1])
    if start < 0 or NEWLINE in mark or _find_run(mark, before) != [start]:
        return None
    found = _find_run(to_texts(before[start:i2]), target)
    if len(found) != 1 or _find_run(mark, target) != found:
        return None
    return found[0] + MIN_CONTEXT, found[0] + MIN_CONTEXT + i2 - i1


def _find_run(run: Sequence[str], text: Sequence[CodeToken]) -> list[int]:
    whole = to_texts(text)
    return [n for n in range(len(whole) - len(run) + 1) if whole[n : n + len(run)] == tuple(run)]


def _locate_removed(
    alignment: TokenAlignment,
    before: Sequence[CodeToken],
    target: Sequence[CodeToken],
    i1: int,
    i2: int,
) -> tuple[int, int] | None:
    """Locate removed tokens: all of them, or both ends and most tokens between."""
    places = [alignment.counterparts[n] for n in range(i1, i2)]
    if not places or places[0] is None or places[-1] is None or places[0] > places[-1]:
        return None
    start, end = places[0], places[-1] + 1
    whole = places == list(range(start, start + len(places)))
    return (
        (start, end)
        if whole
        or _measure_ratio(to_texts(before[i1:i2]), to_texts(target[start:end]))
        > MIN_RATIO_BETWEEN_ENDS
        else None
    )


def _measure_ratio(first: Sequence[str], second: Sequence[str]) -> float:
    return difflib.SequenceMatcher(None, first, second, autojunk=False).ratio()


def find_words_around(before: Sequence[CodeToken], after: Sequence[CodeToken]) -> list[str]:
    """Find the longer names in the lines of an edit, and in those next to them."""
    every = split_lines(before)
    near: set[int] = set()
    for i1, i2, _, _ in find_hunks(align_tokens(before, after), before, after):
        first = next(n for n, (a, b) in enumerate(every) if i1 < b or n == len(every) - 1)
        last = next(n for n, (a, b) in enumerate(every) if i2 <= b or n == len(every) - 1)
        near |= set(range(max(0, first - 2), min(len(every), last + 3)))
    names = {
        t.text for n in near for t in before[slice(*every[n])] if t.is_name and len(t.text) > 4
    }
    return sorted(names - set(keyword.kwlist))


def find_names_in_edit(before: Sequence[CodeToken], after: Sequence[CodeToken]) -> set[str]:
    """Find the names in the lines that an edit changes."""
    found: set[str] = set()
    edit = find_hunks(align_tokens(before, after), before, after)
    for text, first, last in ((before, 0, 1), (after, 2, 3)):
        for a, b in split_lines(text):
            if any(hunk[first] < b and a < max(hunk[last], hunk[first] + 1) for hunk in edit):
                found |= {t.text for t in text[a:b] if t.is_name}
    return found - set(keyword.kwlist)
