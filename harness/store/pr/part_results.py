"""What the parts of a review find: changes of toggles, guards, kernels, rows, and new findings."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class ToggleEffect(StrEnum):
    """What a change does to a toggle."""

    TAKEN_BACK = "taken back"  # the fix was there, and the bug is
    STALE = "stale"  # a form was found before, and none is now
    APPEARS = "appears with the bug"  # the code was not there, and now its buggy form is
    MENDED = "mended"  # the same state, by a form that was mended for the run
    BROUGHT = "brought in"  # the bug was there, and the fix is
    GONE = "gone"  # the code was there, and is not


class ToggleChange(msgspec.Struct):
    """A toggle whose state or form the change alters."""

    id: str
    title: str
    symptom: str
    effect: ToggleEffect
    before: str  # its state on the base
    after: str
    upstream: list[int] = []
    path: str = ""  # in the checkout
    line: int = 0
    why: str = ""  # why it is stale, with the nearest code
    diff: str = ""  # of the mended file


def get_test_name(guard: str) -> str:
    """Return a guard's node id without its parameters."""
    return guard.partition("[")[0]


PASSING_WORDS = ("passed", "", "n/a", "skipped")


class GuardChange(msgspec.Struct):
    """A guard that runs changed lines, before the change and after it.

    It has a verdict for each of its toggles; a test that names none has its outcome in their place.
    """

    guard: str
    toggle: str  # '' for a test without one
    before: str  # a verdict or an outcome; '' if it was not run
    after: str
    plain_before: str = ""  # the outcome with nothing toggled
    plain_after: str = ""
    headline: str = ""  # the failure after the change
    example: list[str] = []
    difference: str = ""  # of what it saw, though it passes before and now
    why: str = ""

    @property
    def is_lost(self) -> bool:
        """Return whether the guard proved its toggle before the change and does not after it."""
        return self.before == "proven" and self.after not in ("proven", "n/a")

    @property
    def is_worse(self) -> bool:
        """Return whether it fails now, or proves no more for another reason than a stale toggle.

        A stale toggle says nothing: the guard as it is has run on the head all the same.
        """
        is_moved = bool(self.difference)
        return self.fails_now or is_moved or (self.is_lost and self.after != "stale")

    @property
    def words(self) -> str:
        if self.fails_now:
            return f"{self.guard}: passed and fails now: {self.headline or self.why}"
        if self.difference:
            return f"{self.guard}: {self.difference}"
        reason = self.why or self.headline
        return f"{self.guard}: {self.toggle} was proven and is {self.after} now: {reason}"

    @property
    def fails_now(self) -> bool:
        """Return whether it passes on the base as it is and fails on the head as it is."""
        return self.plain_before == "passed" and self.plain_after not in PASSING_WORDS


class NewFinding(msgspec.Struct):
    """A finding of the audit that the base does not have."""

    kernel: str
    path: str
    line: int
    kind: str
    text: str  # the line of code
    condition: str
    confirmed: str  # "confirmed", or why not

    @property
    def is_confirmed(self) -> bool:
        return self.confirmed.startswith("confirmed")


class KernelAnswer(StrEnum):
    """How a changed kernel's answers compare with the earlier ones, on the same launches."""

    REPORTED = "reported"  # the changed kernel leaves its tensors, and the earlier one does not
    DIFFERENT = "different"
    ROUNDING = "within rounding"
    SAME = "same bits"
    NOT_COMPARED = "not compared"


class KernelChange(msgspec.Struct):
    """A kernel whose code, helpers, constants or launches changed."""

    kernel: str  # module:name
    path: str
    line: int
    answer: KernelAnswer
    launches: int = 0  # that were run on both
    differing: int = 0
    why: str = ""  # why it was not compared, or what differs
    smallest: list[str] = []  # the smallest launch that differs, a line for each argument
    source: str = ""  # where the launches come from
    drawn: int = 0  # launches around these that were run on both, too
    test: str = ""  # a test that fails after the change, if a short one shows it


class UnnoticedFault(msgspec.Struct):
    """A fault in a changed line that no guard detects."""

    id: str
    target: str
    path: str
    line: int
    words: str
    diff: str
    outcome: str  # survived or unreached
    nearest: str = ""  # the guard that comes nearest
    nearness: str = ""  # how near: "runs line 12 and passes"


class TouchedItem(msgspec.Struct):
    """An architecture of the zoo, or a deployment, that is known to run changed code."""

    name: str
    why: str  # "launches rotate_kernel; runs 2 changed functions, such as m:Rotary.forward"
    hits: int = 0  # changed kernels and functions that it runs
    seconds: float = 0.0  # of the run that is known
    left_out: str = ""  # why it was not run here
    is_over_budget: bool = False  # that is why
    runs: list[str] = []  # the changed kernels and functions that it runs, module:name
    shared: list[str] = []  # the features that it has and the change is about


SAME_BITS, OTHER_BITS = "same bits", "other bits"  # of a row's answers, before and after


class ClaimChange(msgspec.Struct):
    """A claim of the zoo about an architecture that runs changed code, or its answers."""

    architecture: str
    claim: str
    before: str
    after: str
    headline: str = ""
    difference: str = ""  # beyond rounding, whatever the claim says of it
    is_explained: bool = False  # the row was wrong before and holds now: its answers must move

    @property
    def is_lost(self) -> bool:
        return self.before in ("holds", "known") and self.after in ("fails", "absent")

    @property
    def is_worse(self) -> bool:
        return self.is_lost or (bool(self.difference) and not self.is_explained)

    @property
    def words(self) -> str:
        if self.is_lost:
            verb = "is absent" if self.after == "absent" else "fails"
            return f"{self.architecture}: {self.claim} held and {verb} now: {self.headline}"
        return f"{self.architecture}: {self.claim}: {self.difference} ({self.after})"
