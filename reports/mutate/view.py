"""A mutation run as every report shows it: scores, survivors by function, the marked code."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from harness.store.mutate.faults import Fault
from harness.store.mutate.values import Code, Fate, Fated, Mutation, score
from reports.shared import texts
from reports.shared.texts import Mark

MARKS: dict[str, Mark] = {
    mark.word: mark
    for mark in (
        Mark("survived", "SUR", "○", "toothless", "Its code ran, and no guard noticed."),
        Mark("unreached", "UNR", "·", "unreached", "No guard runs its code."),
        Mark("killed", "KIL", "✓", "good", "A guard noticed it."),
        Mark("equal", "EQU", "=", "quiet", "It is the same as the original, for a reason kept."),
        Mark("not live", "NOT", "↯", "quiet", "Only an import can put it in: outside the score."),
    )
}
WRONG = Mark("untrue", "UNT", "≠", "broken", "It is said to be equal, and a guard noticed it.")
UNSEEN = (
    "its code ran under the guards named here and none of them noticed: strengthen one, "
    "or say in suites/equal_faults.yaml why nothing can notice"
)
UNASKED = "no guard runs its lines: a suite has to drive this code before it can notice anything"
# What a call of `unfix mutate` means without these options.
USUAL: dict[str, Any] = {
    "operators": "",
    "suite": [],
    "profile": "default",
    "examples": 10,
    "toggles": [],
}


def mark(fated: Fated) -> Mark:
    return WRONG if fated.untrue else MARKS[fated.fate.value]


@dataclass(frozen=True)
class Share:
    """The faults of one family, function or operator."""

    name: str
    fates: list[Fated]

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(fated.fate.value for fated in self.fates)
        return {word: found[word] for word in MARKS}

    @property
    def score(self) -> float | None:
        return score(self.fates)

    @property
    def told(self) -> str:
        return percent(self.score)


@dataclass(frozen=True)
class Line:
    """A line of a target, with the faults that begin on it."""

    number: int
    text: str
    fates: list[Fated] = field(default_factory=list)


@dataclass(frozen=True)
class Page:
    """A target's code."""

    code: Code
    lines: list[Line]
    share: Share


@dataclass(frozen=True)
class MutationView:
    run: Mutation
    families: list[Share]
    functions: list[Share]
    operators: list[Share]
    survivors: list[Share]  # by function
    unreached: list[Share]
    untrue: list[Fated]
    pages: list[Page]
    kills: list[tuple[str, int]]  # by guard, the most first
    how: list[tuple[str, int]]


def make(run: Mutation) -> MutationView:
    fates = run.fates
    survived = [fated for fated in fates if fated.fate is Fate.SURVIVED]
    unreached = [fated for fated in fates if fated.fate is Fate.UNREACHED]
    functions = shares(fates, lambda fated: fated.fault.target)
    by_target = {share.name: share for share in functions}
    return MutationView(
        run=run,
        families=shares(fates, lambda fated: fated.family or "no family"),
        functions=functions,
        operators=shares(fates, lambda fated: fated.fault.operator),
        survivors=shares(survived, lambda fated: fated.fault.target),
        unreached=shares(unreached, lambda fated: fated.fault.target),
        untrue=[fated for fated in fates if fated.untrue],
        pages=[
            _page(code, by_target[code.target]) for code in run.codes if code.target in by_target
        ],
        kills=Counter(guard_name(fated.by) for fated in fates if fated.by).most_common(),
        how=Counter(fated.how.value for fated in fates if fated.how).most_common(),
    )


def shares(fates: Iterable[Fated], named: Callable[[Fated], str]) -> list[Share]:
    found: dict[str, list[Fated]] = {}
    for fated in fates:
        found.setdefault(named(fated), []).append(fated)
    return [Share(name, found[name]) for name in sorted(found)]


def _page(code: Code, share: Share) -> Page:
    by_line: dict[int, list[Fated]] = {}
    for fated in share.fates:
        by_line.setdefault(fated.fault.line, []).append(fated)
    lines = [
        Line(number, text, by_line.get(number, []))
        for number, text in enumerate(code.text.split("\n"), code.first)
    ]
    return Page(code, lines, share)


def percent(value: float | None) -> str:
    return "none reached" if value is None else f"{value:.1f} %"


def guard_name(guard: str) -> str:
    return guard.rpartition("::")[2].removeprefix("test_")


def change(fault: Fault) -> str:
    return f"{short(fault.before)} → {short(fault.after)}"


def short(code: str, most: int = 60) -> str:
    line = " ".join(code.split()) or "nothing"
    return line if len(line) <= most else f"{line[: most - 1]}…"


def why(fated: Fated) -> str:
    """Why a fault is not killed, or what killed it, in a sentence."""
    if fated.fate is Fate.KILLED:
        how = fated.how.value if fated.how else ""
        return f"{how}: {guard_name(fated.by)}: {fated.headline}"
    if fated.fate is Fate.SURVIVED:
        names = ", ".join(guard_name(guard) for guard in fated.passed)
        longer = ", then with many more examples" if fated.longer else ""
        return f"ran {fated.ran} times; passed by {names}{longer}"
    return fated.why


def again(run: Mutation, fated: Fated) -> str:
    """The command that runs a fault alone, asked as the run was."""
    return _command(run, fated, ("operators", "suite", "profile", "examples"), "--fault")


def keep(run: Mutation, fated: Fated) -> str:
    """The command that makes a fault a toggle."""
    return _command(run, fated, ("operators",), "--keep")


def _command(run: Mutation, fated: Fated, names: tuple[str, ...], what: str) -> str:
    settings = USUAL | {"release": run.release} | run.settings
    words = ["unfix", "mutate", fated.fault.target]
    for name in ("release", *names, "toggles"):
        value = settings[name]
        if value != USUAL.get(name):
            each = value if isinstance(value, list) else [value]
            words += [word for one in each for word in (f"--{name}", str(one))]
    return shlex.join([*words, what, fated.fault.id])


def sentence(run: Mutation) -> str:
    """A run in one sentence."""
    counts = run.counts
    reached = counts.get("killed", 0) + counts.get("survived", 0)
    told = ", ".join(f"{count} {word}" for word, count in counts.items()) or "no faults"
    return (
        f"{percent(run.score)} of {reached} reached faults killed on SGLang {run.release} "
        f"({told}; {texts.duration(run.seconds)})"
    )
