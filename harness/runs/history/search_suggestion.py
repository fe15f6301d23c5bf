"""The search of `unfix bisect` that fits a failure, if there is one."""

from __future__ import annotations

import shlex

import msgspec
from packaging.version import InvalidVersion, Version

from harness.core.outcomes import Verdict
from harness.runs.history.failure_evidence import FailureEvidence
from harness.runs.history.values import NightHistory, Timeline
from harness.store.bisect.values import BisectSearch


class SuggestedSearch(msgspec.Struct):
    """A search, or the reason why none fits."""

    no_search_reason: str = ""
    search_kind: str = ""  # releases, toggles
    options: list[str] = []
    symptom_command: list[str] = []  # the command that shows the failure
    release: str = ""

    @property
    def command(self) -> list[str]:
        return ["bisect", self.search_kind, *self.options, "--", *self.symptom_command]

    @property
    def command_line(self) -> str:
        return shlex.join(["./unfix", *self.command])

    def is_answered_by(self, search: BisectSearch) -> bool:
        """Return whether a stored search is about this failure."""
        where = {search.settings.get(name) for name in ("release", "good", "bad")}
        return search.symptom_command == self.symptom_command and self.release in where


UNSEARCHABLE_VERDICTS = ("toothless", "unreached", "stale")


def suggest_search(
    timeline: Timeline, evidence: FailureEvidence, history: NightHistory
) -> SuggestedSearch:
    details = dict(timeline.item.details)
    kind = timeline.item.kind
    if kind == "prove" and "guard" in details:
        verdict = timeline.informative_points[-1].main_observation.message.partition(":")[0]
        if verdict in UNSEARCHABLE_VERDICTS:
            return SuggestedSearch(
                f"a guard that is {verdict} shows no failure that a search could follow"
            )
        device = ["--device", details["on"]]
        return _suggest_release_search(timeline, history, [details["guard"]], device)
    if kind == "fuzz" and evidence.example_blob:
        words = ["python", "-m", "pytest", details["test"], "--replay", evidence.example_blob]
        under = [(name, direction) for name, direction in timeline.item.details if name != "test"]
        pins = [
            f"--hold-{'reverted' if direction == 'revert' else 'applied'}={name}"
            for name, direction in under
        ]
        return _suggest_release_search(timeline, history, words, pins)
    if kind == "matrix":
        if evidence.command[:1] not in (["unfix"], ["./unfix"], []):
            return _suggest_toggle_search(timeline.item.release, evidence.command, [])
        return SuggestedSearch(
            "the cell runs unfix itself, which looks after its own toggles; "
            "what failed inside of it has an entry of its own"
        )
    if kind == "eval":
        return SuggestedSearch(
            "an evaluation serves two configurations at once; search with a command that asks "
            "one of them, as `unfix bisect toggles --serve … --metric …`"
        )
    if kind == "lifecycle":
        return SuggestedSearch(
            "every release was run as it is already: a search would ask the same"
        )
    if kind == "mutate":
        return SuggestedSearch(
            "a fault that survives is about the suites: no fix of SGLang explains it"
        )
    return SuggestedSearch("there is no single command that shows it")


def _suggest_release_search(
    timeline: Timeline, history: NightHistory, symptom_command: list[str], options: list[str]
) -> SuggestedSearch:
    """Suggest a search between two releases if another passes, else over this one's fixes."""
    bad = timeline.item.release
    good = _find_passing_release(timeline, history)
    if good:
        ends = ["--good", good, "--bad", bad]
        return SuggestedSearch("", "releases", [*ends, *options], symptom_command, bad)
    return _suggest_toggle_search(bad, symptom_command, options)


def _suggest_toggle_search(
    release: str, symptom_command: list[str], options: list[str]
) -> SuggestedSearch:
    if not release:
        return SuggestedSearch("it is not known on which release it ran")
    return SuggestedSearch(
        "", "toggles", ["--enable", "--release", release, *options], symptom_command, release
    )


def _find_passing_release(timeline: Timeline, history: NightHistory) -> str:
    """Return the nearest release, older ones first, on which the item's last outcome was ok."""
    passing = [
        other.item.release
        for other in history.timelines
        if other.item.kind == timeline.item.kind
        and other.item.details == timeline.item.details
        and other.item.device == timeline.item.device
        and other.item.release != timeline.item.release
        and other.informative_points
        and other.informative_points[-1].outcome is Verdict.PASSES
    ]
    try:
        failing = Version(timeline.item.release)
        versions = sorted({Version(name) for name in passing})
    except InvalidVersion:
        return ""
    older = [version for version in versions if version < failing]
    return str(older[-1] if older else versions[0]) if versions else ""
