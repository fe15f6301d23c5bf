"""What an evaluation came to: what was served, what it answered, and what two of them differ in."""

from __future__ import annotations

import enum

import msgspec


class ComparisonVerdict(enum.StrEnum):
    """What a comparison says; the first four are good enough to go on."""

    SAME = "same"
    IMPROVED = "improved"
    EQUAL = "equal"
    NEAR_TIE = "near-tie"
    REGRESSED = "regressed"
    DIFFERS = "differs"
    DRIFTS = "drifts"
    CANNOT_TELL = "cannot-tell"
    HANG = "hang"  # it lived and answered no more
    FAILED = "failed"  # one of the two was not served, or not to the end
    NA = "n/a"

    @property
    def is_acceptable(self) -> bool:
        return self in (
            ComparisonVerdict.SAME,
            ComparisonVerdict.IMPROVED,
            ComparisonVerdict.EQUAL,
            ComparisonVerdict.NEAR_TIE,
        )

    @property
    def shows_fault(self) -> bool:
        """Whether this shows a fault."""
        return self in (
            ComparisonVerdict.REGRESSED,
            ComparisonVerdict.DIFFERS,
            ComparisonVerdict.DRIFTS,
            ComparisonVerdict.FAILED,
            ComparisonVerdict.HANG,
        )


class ItemAnswer(msgspec.Struct):
    """One item, as one server answered it."""

    task: str
    number: int  # of the item in its task
    prompt: str
    target: str
    text: str
    right: bool | None  # None: there was no answer to score
    error: str = ""
    tokens: list[str] = []
    logprobs: list[float | None] = []  # None where the server gave no number
    margins: list[float | None] = []  # over the runner-up, where the server said


class ServedConfiguration(msgspec.Struct):
    """One configuration: a server, what it was asked, and how it went."""

    name: str
    model: str
    release: str
    words: list[str]  # SGLang's own arguments
    device: str
    revert: list[str] = []
    enable: list[str] = []
    stand_ins: list[str] = []  # in words; what was not the real thing, or watched
    how: str = ""  # 'warm', 'afresh', 'plain transformers'
    ready: float = 0.0  # seconds until it answered
    seconds: float = 0.0  # for all items
    failure: str = ""  # why it did not get ready, or died
    absent: str = ""  # why it cannot be run here: a row with its reason
    answers: list[ItemAnswer] = []
    again: list[ItemAnswer] = []  # the same items once more: what the server differs from itself
    reach: dict[str, int] = {}  # how often toggled code ran
    accepted: float | None = None  # mean tokens a step, of speculative decoding

    @property
    def problems(self) -> list[str]:
        """What is wrong with it by itself, whatever it is compared with."""
        said = [f"{self.name} was not served to the end: {self.failure}"] if self.failure else []
        errors = [answer.error for answer in self.answers if answer.error]
        if errors:
            said.append(f"{self.name}: {len(errors)} of its answers are errors, as {errors[0]}")
        if not (self.answers or self.failure or self.absent):
            said.append(f"{self.name} answered nothing, and nobody said why")
        return said

    def select_answers(self, task: str) -> list[ItemAnswer]:
        """The answers of one task; of all of them for ''."""
        return [answer for answer in self.answers if task in ("", answer.task)]

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(answer.task for answer in self.answers))


class AnswerDifference(msgspec.Struct):
    """An item on which two servers differ, to be looked at side by side."""

    task: str
    number: int
    why: str  # 'lost', 'gained', 'differs', 'near-tie', 'drifts', 'error'
    at: int | None = None  # the first token that differs
    divergence: float | None = None


class ComparisonResult(msgspec.Struct):
    """Two configurations over the same items of one task ('' for all of them)."""

    base: str
    candidate: str
    kind: str  # 'accuracy' or 'tokens'
    task: str
    verdict: ComparisonVerdict
    words: str  # the verdict as a sentence
    items: int = 0
    lost: int = 0
    gained: int = 0
    errors: int = 0
    drop: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    # Of logprobs, or of the leads over the runner-up: whichever is the more.
    noise: float | None = None  # the largest difference of the base from itself
    divergence: float | None = None  # the largest difference from the base
    mean_divergence: float | None = None
    differences: list[AnswerDifference] = []


class PlantedFault(msgspec.Struct):
    """A toggle that was put in on purpose, and who saw it."""

    toggle: str
    configuration: str
    served: str  # the name of what was served with it in
    expected: bool  # whether an evaluation has to see it
    caught: bool
    by: list[str]  # the comparisons that saw it, in words
    user_sees: str  # 'crash', 'wrong answers', 'other words', 'nothing'
    reach: int = 0
    absent: str = ""


class Evaluation(msgspec.Struct):
    """One `unfix eval`, whole."""

    id: str = msgspec.field(name="identity")
    name: str  # of the matrix, or what was asked
    command: str
    started: float
    seconds: float
    status: str = msgspec.field(name="state")  # 'running', 'done', 'stopped'
    device: str
    seed: int
    items: int
    alpha: float
    cells: int  # comparisons that share the false alarms
    smallest_drop: float | None  # found with 95 % power with so many items
    served: list[ServedConfiguration] = []
    compared: list[ComparisonResult] = []
    faults: list[PlantedFault] = []
    machine: dict[str, str] = {}

    def find_configuration(self, name: str) -> ServedConfiguration:
        return next(served for served in self.served if served.name == name)

    @property
    def planted_names(self) -> set[str]:
        """The names of what was served with a fault put in on purpose."""
        return {fault.served for fault in self.faults}

    @property
    def failed_comparisons(self) -> list[ComparisonResult]:
        """Comparisons that say no, those with a fault put in on purpose aside."""
        return [
            one
            for one in self.compared
            if not one.verdict.is_acceptable
            and one.verdict is not ComparisonVerdict.NA
            and one.candidate not in self.planted_names
        ]

    @property
    def missed_faults(self) -> list[PlantedFault]:
        return [fault for fault in self.faults if fault.expected and not fault.caught]

    @property
    def problems(self) -> list[str]:
        """Why it is not green, in words: all is well only when something was compared and nothing
        is open."""
        said = (
            []
            if self.status == "done"
            else [_STATUS_PROBLEMS.get(self.status, f"it is {self.status}")]
        )
        if not any(served.answers for served in self.served):
            said.append("nothing was answered")
        elif all(one.verdict is ComparisonVerdict.NA for one in self.compared):
            said.append("nothing was compared")
        for served in self.served:
            if served.name not in self.planted_names:
                said += served.problems
        for one in self.failed_comparisons:
            where = f" ({one.task})" if one.task else ""
            words = one.words.removeprefix(f"{one.verdict}: ")
            said.append(f"{one.candidate} against {one.base}{where}: {one.verdict}: {words}")
        for fault in self.missed_faults:
            why = f": {fault.absent}" if fault.absent else ""
            said.append(f"{fault.toggle} in {fault.configuration} was not noticed{why}")
        return said

    @property
    def green(self) -> bool:
        return not self.problems


_STATUS_PROBLEMS = {"running": "it is not done", "stopped": "it was stopped before it was done"}
