"""Which search of `unfix bisect` fits a failure, if any does."""

from __future__ import annotations

import shlex

import msgspec
from packaging.version import InvalidVersion, Version

from harness.history.evidence import Evidence
from harness.history.values import History, Line, Outcome
from harness.store.bisect.values import Search


class Fitting(msgspec.Struct):
    """A search, or why there is none."""

    why_not: str = ""
    over: str = ""  # releases, toggles
    options: list[str] = []
    words: list[str] = []  # what shows the failure
    release: str = ""

    @property
    def command(self) -> list[str]:
        return ["bisect", self.over, *self.options, "--", *self.words]

    @property
    def line(self) -> str:
        return shlex.join(["./unfix", *self.command])

    def answers(self, search: Search) -> bool:
        """Whether a search that was made is about this failure."""
        where = {search.settings.get(name) for name in ("release", "good", "bad")}
        return search.words == self.words and self.release in where


SILENT = ("toothless", "unreached", "stale")


def fitting(line: Line, evidence: Evidence, history: History) -> Fitting:
    about = dict(line.thing.about)
    kind = line.thing.kind
    if kind == "prove" and "guard" in about:
        verdict = line.telling[-1].last.words.partition(":")[0]
        if verdict in SILENT:
            return Fitting(f"a guard that is {verdict} shows no failure that a search could follow")
        device = ["--device", about["on"]]
        return _over(line, history, [about["guard"]], device)
    if kind == "fuzz" and evidence.blob:
        words = ["python", "-m", "pytest", about["test"], "--replay", evidence.blob]
        under = [(name, way) for name, way in line.thing.about if name != "test"]
        held = [f"--hold-{'buggy' if way == 'revert' else 'fixed'}={name}" for name, way in under]
        return _over(line, history, words, held)
    if kind == "matrix":
        if evidence.command[:1] not in (["unfix"], ["./unfix"], []):
            return _toggles(line.thing.release, evidence.command, [])
        return Fitting(
            "the cell runs unfix itself, which looks after its own toggles; "
            "what failed inside of it has an entry of its own"
        )
    if kind == "eval":
        return Fitting(
            "an evaluation serves two configurations at once; search with a command that asks "
            "one of them, as `unfix bisect toggles --serve … --metric …`"
        )
    if kind == "lifecycle":
        return Fitting("every release was run as it is already: a search would ask the same")
    if kind == "mutate":
        return Fitting("a fault that survives is about the suites: no fix of SGLang explains it")
    return Fitting("there is no single command that shows it")


def _over(line: Line, history: History, words: list[str], options: list[str]) -> Fitting:
    """Between two releases if another one passes; else over the fixes that could mend this one."""
    bad = line.thing.release
    good = _passing(line, history)
    if good:
        ends = ["--good", good, "--bad", bad]
        return Fitting("", "releases", [*ends, *options], words, bad)
    return _toggles(bad, words, options)


def _toggles(release: str, words: list[str], options: list[str]) -> Fitting:
    if not release:
        return Fitting("it is not known on which release it ran")
    return Fitting("", "toggles", ["--enable", "--release", release, *options], words, release)


def _passing(line: Line, history: History) -> str:
    """The nearest release, older ones first, on which the same was ok when last run."""
    found = [
        other.thing.release
        for other in history.lines
        if other.thing.kind == line.thing.kind
        and other.thing.about == line.thing.about
        and other.thing.device == line.thing.device
        and other.thing.release != line.thing.release
        and other.telling
        and other.telling[-1].outcome is Outcome.OK
    ]
    try:
        mine = Version(line.thing.release)
        known = sorted({Version(name) for name in found})
    except InvalidVersion:
        return ""
    older = [version for version in known if version < mine]
    return str(older[-1] if older else known[0]) if known else ""
