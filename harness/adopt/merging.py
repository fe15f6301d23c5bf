"""An edit carried from one text of a definition to another that has moved on: by tokens.

The two texts are aligned, first line by line, then token by token where lines differ. The edit is
carried where what it takes out stands, and what stands around it does, under the names of there.
"""

from __future__ import annotations

import difflib
import keyword
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from harness.adopt.tokens import LINE, Lost, Token, key, lines

AROUND = 6  # tokens on each side of an edit that are looked for
ENOUGH = 6  # of the twelve must be there,
SURE = 8  # and more where one side's next token is not
NEAR = 12  # tokens that may have come between
SLIDE = 12
SAME = 0.7  # of what an edit takes out, what must be there between its two ends
LOOSE = 0.5  # of what an edit takes out, what must be there
PAIRED = 0.5  # of two lines that are one, what must be the same
LINES = 40_000  # lines times lines: what is compared in a moment
OTHER = "other code stands where the edit would put its own"


class Twice(Lost):
    """Whichever way it is told, one of the two would be left."""


@dataclass
class Alignment:
    """For each token of one text, the token of the other that it is, if any."""

    to: list[int | None]
    names: dict[str, str] = field(default_factory=dict)  # as the other calls what this one names


def align(ours: Sequence[Token], theirs: Sequence[Token]) -> Alignment:
    found = Alignment([None] * len(ours))
    mine, its = lines(ours), lines(theirs)
    compared = difflib.SequenceMatcher(
        None, [key(ours[a:b]) for a, b in mine], [key(theirs[a:b]) for a, b in its], autojunk=False
    )
    for kind, a, b, c, d in compared.get_opcodes():
        if kind == "equal":
            for offset in range(mine[b - 1][1] - mine[a][0]):
                found.to[mine[a][0] + offset] = its[c][0] + offset
        elif kind == "replace":
            bags = ([Counter(key(ours[m:n])) for m, n in mine[a:b]],
                    [Counter(key(theirs[m:n])) for m, n in its[c:d]])  # fmt: skip
            for one, other in _pairs(*bags, 0, b - a, 0, d - c):
                _within(ours, theirs, (*mine[a + one], *its[c + other]), found)
    return found


def _pairs(
    ours: list[Counter[str]], theirs: list[Counter[str]], a: int, b: int, c: int, d: int
) -> Iterator[tuple[int, int]]:
    """Lines that are one that changed: the two most alike, then those before and behind them."""
    if (b - a) * (d - c) > LINES:
        return
    best, pair = PAIRED, None
    for one in range(a, b):
        for other in range(c, d):
            same = (ours[one] & theirs[other]).total()
            alike = 2 * same / (ours[one].total() + theirs[other].total())
            if alike * same**0.5 > best and alike > PAIRED:
                best, pair = alike * same**0.5, (one, other)
    if pair is not None:
        yield from _pairs(ours, theirs, a, pair[0], c, pair[1])
        yield pair
        yield from _pairs(ours, theirs, pair[0] + 1, b, pair[1] + 1, d)


def _within(
    ours: Sequence[Token],
    theirs: Sequence[Token],
    where: tuple[int, int, int, int],
    found: Alignment,
) -> None:
    first, last, start, end = where
    compared = difflib.SequenceMatcher(
        None,
        [token.text for token in ours[first:last]],
        [token.text for token in theirs[start:end]],
        autojunk=False,
    )
    for kind, a, b, c, d in compared.get_opcodes():
        if kind == "equal" or (kind == "replace" and b - a == d - c):
            for offset in range(b - a):
                one, other = ours[first + a + offset], theirs[start + c + offset]
                if kind == "equal":
                    found.to[first + a + offset] = start + c + offset
                elif one.name and other.name:
                    found.to[first + a + offset] = start + c + offset
                    found.names.setdefault(one.text, other.text)


@dataclass(frozen=True, slots=True)
class Carried:
    """A text with the edit made, and how sure it is."""

    tokens: list[Token]
    alike: float  # of the definition's tokens, how many are there
    renamed: dict[str, str]
    loose: bool  # whether what was taken out is not word for word what it was
    fewer: int = 0  # of several places alike, how many are not there
    imported: tuple[str, ...] = ()  # names that it brings along


Hunk = tuple[int, int, int, int]


def carry(before: Sequence[Token], after: Sequence[Token], there: Sequence[Token]) -> Carried:
    """The edit from `before` to `after`, made to `there`.

    Of hunks that take out the same and put in the same, some may be missing: they are one fix in
    several places.
    """
    onto = align(before, there)
    cuts: list[tuple[int, int, list[Token]]] = []
    loose = False
    renamed: dict[str, str] = {}
    made: set[tuple[tuple[str, ...], tuple[str, ...]]] = set()
    lost: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Lost]] = {}
    for hunk in reversed(hunks(align(before, after), before, after)):
        what = min(
            (key(before[i1:i2]), key(after[j1:j2]))
            for i1, i2, j1, j2 in slides(hunk, before, after)
        )
        try:
            (i1, i2, j1, j2), k1, k2 = _slid(hunk, onto, before, after, there)
        except Lost as error:
            lost.setdefault(what, []).append(error)
            continue
        gone, found = list(key(before[i1:i2])), list(key(there[k1:k2]))
        names = onto.names
        one_sided = not gone and (
            onto.to[i1 - 1] is None or i2 == len(before) or onto.to[i2] is None
        )
        if one_sided or ([names.get(t, t) for t in gone] != found and gone != found):
            loose = True
        new = [replace(t, text=names.get(t.text, t.text)) if t.name else t for t in after[j1:j2]]
        used = {t.text for t in (*before[i1:i2], *after[j1:j2])}
        renamed |= {name: names[name] for name in used if name in names}
        if not gone and _there_already(new, before, there, onto, i1, k1):
            lost.setdefault(what, []).append(Lost("what the edit puts in stands there already"))
            continue
        if not new and _times(gone, before, i1) < _times(found, there, k1):
            raise Twice("what the edit takes out stands there twice: one alone may do nothing")
        cuts.append((k1, k2, new))
        made.add(what)
    for what, errors in lost.items():
        if what not in made:
            raise errors[0]
    result = list(there)
    cuts.sort(key=lambda cut: cut[:2])
    if any(end > start for (_, end, _), (start, _, _) in pairwise(cuts)):
        raise Lost("two parts of the edit meet in one place")
    for k1, k2, new in reversed(cuts):
        result[k1:k2] = new
    if key(result) == key(there):
        raise Lost("the edit changes nothing there")
    same = sum(1 for at in onto.to if at is not None)
    fewer = sum(len(errors) for errors in lost.values())
    return Carried(result, same / max(1, len(before)), renamed, loose, fewer)


def _times(run: Sequence[str], text: Sequence[Token], at: int) -> int:
    """How often a run of tokens stands in the statement's line that holds a place."""
    line = next((key(text[a:b]) for a, b in lines(text) if a <= at < b), ())
    return sum(line[n : n + len(run)] == tuple(run) for n in range(len(line)))


def says_already(before: Sequence[Token], after: Sequence[Token], there: Sequence[Token]) -> bool:
    """Whether new lines of `there` say all that the edit from `before` to `after` puts in."""
    onto = align(before, there)
    return any(
        _there_already(after[j1:j2], before, there, onto, i1, len(there))
        for i1, i2, j1, j2 in hunks(align(before, after), before, after)
        if i1 == i2
    )


def _there_already(
    new: Sequence[Token],
    before: Sequence[Token],
    there: Sequence[Token],
    onto: Alignment,
    at: int,
    where: int,
) -> bool:
    """Whether its line, or a line that is new there, says what the edit would put in."""
    names = {token.text for token in new if token.name} - set(keyword.kwlist)
    if not names:
        return False
    every = lines(there)
    known = {n for n in onto.to if n is not None}
    strange = [set(key(there[a:b])) for a, b in every if known.isdisjoint(range(a, b))]
    mine = next((key(before[a:b]) for a, b in lines(before) if a <= at < b), ())
    own = next((set(key(there[a:b])) for a, b in every if a <= where < b), set())
    fresh = names - set(mine)
    return any(names <= line for line in strange) or bool(fresh and fresh <= own)


def _slid(
    hunk: Hunk,
    onto: Alignment,
    before: Sequence[Token],
    after: Sequence[Token],
    there: Sequence[Token],
) -> tuple[Hunk, int, int]:
    """A hunk where it has a place: taking `and x` out before `and` is taking out `x and`."""
    first: Lost | None = None
    for one in slides(hunk, before, after):
        try:
            inside = LINE not in key(after[one[2] : one[3]])
            return one, *_place(onto, before, there, one[0], one[1], inside)
        except Lost as error:
            first = first or error
    raise first or Lost("it has no place")


def slides(hunk: Hunk, before: Sequence[Token], after: Sequence[Token]) -> Iterator[Hunk]:
    yield hunk
    i1, i2, j1, j2 = hunk
    if (i1 == i2) == (j1 == j2):
        return
    text, first, last = (before, i1, i2) if i2 > i1 else (after, j1, j2)
    if text is after and LINE in key(after[j1:j2]):
        return  # a statement is put between two that are both there
    for step in range(1, SLIDE):
        if first - step < 0 or text[first - step].text != text[last - step].text:
            break
        yield i1 - step, i2 - step, j1 - step, j2 - step
    for step in range(SLIDE):
        if last + step >= len(text) or text[first + step].text != text[last + step].text:
            break
        yield i1 + step + 1, i2 + step + 1, j1 + step + 1, j2 + step + 1


def hunks(
    edit: Alignment, before: Sequence[Token], after: Sequence[Token]
) -> list[tuple[int, int, int, int]]:
    """The runs of tokens that gave way to others."""
    result = []
    i = j = 0
    anchors = [
        (n, at)
        for n, at in enumerate(edit.to)
        if at is not None and before[n].text == after[at].text
    ]
    for a, b in [*anchors, (len(before), len(after))]:
        if a > i or b > j:
            result.append((i, a, j, b))
        i, j = a + 1, b + 1
    return result


def _place(
    onto: Alignment,
    before: Sequence[Token],
    there: Sequence[Token],
    i1: int,
    i2: int,
    inside: bool,
) -> tuple[int, int]:
    """Where the tokens from i1 to i2 stand, told by themselves and by what stands around them."""
    prior = onto.to[i1 - 1] if i1 else -1
    following = onto.to[i2] if i2 < len(before) else len(there)
    own = _own(onto, before, there, i1, i2)
    if own is not None:
        start, end = own
    elif prior is not None and following is not None and prior < following:
        start, end = prior + 1, following
        gone, found = key(before[i1:i2]), key(there[start:end])
        if bool(gone) != bool(found):
            raise Lost("what the edit takes out does not stand there" if gone else OTHER)
        if gone and _ratio(gone, found) < LOOSE:
            raise Lost("what the edit takes out does not stand there")
    elif inside and (known := _behind_landmark(before, there, i1, i2)) is not None:
        return known
    elif i1 == i2 and inside and (prior is not None or following is not None):
        start = end = prior + 1 if prior is not None else following or 0
    else:
        raise Lost("what stands around the edit is gone")
    seen = [
        at is not None and abs(at - at_least) < NEAR
        for step, edge, base in ((-1, i1 - 1, start - 1), (1, i2, end))
        for n in range(AROUND)
        if 0 <= edge + step * n < len(before)
        for at, at_least in ((onto.to[edge + step * n], base + step * n),)
    ]
    one_side = i1 == i2 and (prior is None or following is None)
    if sum(seen) < min(SURE if one_side else ENOUGH, len(seen)):
        raise Lost("too little of what stands around the edit is there")
    return start, end


def _behind_landmark(
    before: Sequence[Token], there: Sequence[Token], i1: int, i2: int
) -> tuple[int, int] | None:
    """Where an edit in a line stands behind tokens that each of the texts has once."""
    start = i1 - ENOUGH
    mark = key(before[start:i1])
    if start < 0 or LINE in mark or _at(mark, before) != [start]:
        return None
    found = _at(key(before[start:i2]), there)
    if len(found) != 1 or _at(mark, there) != found:
        return None
    return found[0] + ENOUGH, found[0] + ENOUGH + i2 - i1


def _at(run: Sequence[str], text: Sequence[Token]) -> list[int]:
    whole = key(text)
    return [n for n in range(len(whole) - len(run) + 1) if whole[n : n + len(run)] == tuple(run)]


def _own(
    onto: Alignment, before: Sequence[Token], there: Sequence[Token], i1: int, i2: int
) -> tuple[int, int] | None:
    """Where what is taken out stands by itself: all of it, or its two ends and most between."""
    places = [onto.to[n] for n in range(i1, i2)]
    if not places or places[0] is None or places[-1] is None or places[0] > places[-1]:
        return None
    start, end = places[0], places[-1] + 1
    whole = places == list(range(start, start + len(places)))
    return (
        (start, end) if whole or _ratio(key(before[i1:i2]), key(there[start:end])) > SAME else None
    )


def _ratio(one: Sequence[str], other: Sequence[str]) -> float:
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def words_around(before: Sequence[Token], after: Sequence[Token]) -> list[str]:
    """The longer names in the lines of an edit, and in those next to them."""
    every = lines(before)
    near: set[int] = set()
    for i1, i2, _, _ in hunks(align(before, after), before, after):
        first = next(n for n, (a, b) in enumerate(every) if i1 < b or n == len(every) - 1)
        last = next(n for n, (a, b) in enumerate(every) if i2 <= b or n == len(every) - 1)
        near |= set(range(max(0, first - 2), min(len(every), last + 3)))
    names = {t.text for n in near for t in before[slice(*every[n])] if t.name and len(t.text) > 4}
    return sorted(names - set(keyword.kwlist))


def names_in_edit(before: Sequence[Token], after: Sequence[Token]) -> set[str]:
    """The names in the lines that an edit changes."""
    found: set[str] = set()
    edit = hunks(align(before, after), before, after)
    for text, first, last in ((before, 0, 1), (after, 2, 3)):
        for a, b in lines(text):
            if any(hunk[first] < b and a < max(hunk[last], hunk[first] + 1) for hunk in edit):
                found |= {t.text for t in text[a:b] if t.name}
    return found - set(keyword.kwlist)
