"""A stored evaluation: its configurations, their answers, and the comparisons of two of them."""

from __future__ import annotations

import msgspec

from harness.core.outcomes import RunStatus, Verdict, require_word

# The verdicts of comparisons that show a fault. `fails`: a server did not start, or died; `hang`:
# it was alive and stopped answering.
FAULT_SHOWING_VERDICTS = (
    *(Verdict.REGRESSED, Verdict.DIFFERS, Verdict.DRIFTS),
    *(Verdict.FAILS, Verdict.HANG),
)
COMPARISON_VERDICTS = (
    *(Verdict.SAME, Verdict.IMPROVED, Verdict.EQUAL, Verdict.NEAR_TIE),
    *(*FAULT_SHOWING_VERDICTS, Verdict.CANNOT_TELL, Verdict.NA),
)


class ItemAnswer(msgspec.Struct):
    """One server's answer to one item."""

    task: str
    number: int  # the item's number in its task
    prompt: str
    target: str
    text: str
    right: bool | None  # None: no answer to score
    error: str = ""
    tokens: list[str] = []
    logprobs: list[float | None] = []  # None: no number from the server
    margins: list[float | None] = []  # leads over the runner-up; None: unknown


class RepeatedRun(msgspec.Struct):
    """One more run over the items that fail with a planted fault, with the fault or without it."""

    answers: list[ItemAnswer] = []
    failure: str = ""  # the reason why the server did not get ready, or died


class ServedConfiguration(msgspec.Struct):
    """One configuration: its server, and the server's answers."""

    name: str
    model: str
    release: str
    words: list[str]  # SGLang's own arguments
    device: str
    revert: list[str] = []
    enable: list[str] = []
    stand_ins: list[str] = []  # descriptions of replaced or observed parts
    operators: dict[str, int] = {}  # of the virtual GPU: how often each stand-in computed
    how: str = ""  # 'warm', 'afresh', 'plain transformers'
    ready: float = 0.0  # seconds until the first answer
    seconds: float = 0.0  # for all items
    failure: str = ""  # the reason why the server did not get ready, or died
    absent: str = ""  # the reason why this machine cannot run it
    answers: list[ItemAnswer] = []
    again: list[ItemAnswer] = []  # a second run over the items, for the server's own noise
    # The evidence of planted faults: of a configuration with one, and of the one without it.
    repeated: list[RepeatedRun] = []
    reach: dict[str, int] = {}  # calls of toggled code
    accepted: float | None = None  # mean accepted tokens per speculative step

    @property
    def problems(self) -> list[str]:
        """Return the problems of this configuration alone, before any comparison."""
        problems: list[str] = []
        if self.failure:
            problems.append(f"{self.name} was not served to the end: {self.failure}")
        errors = [answer.error for answer in self.answers if answer.error]
        if errors:
            problems.append(f"{self.name}: {len(errors)} of its answers are errors, as {errors[0]}")
        if not (self.answers or self.failure or self.absent):
            problems.append(f"{self.name} has no answers, and no reason is recorded")
        return problems

    def select_answers(self, task: str) -> list[ItemAnswer]:
        """Return the answers of one task, or of all tasks for ''."""
        return [answer for answer in self.answers if task in ("", answer.task)]

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(answer.task for answer in self.answers))


class AnswerDifference(msgspec.Struct):
    """An item that two servers answer differently, with both answers."""

    task: str
    number: int
    why: str  # 'lost', 'gained', 'differs', 'near-tie', 'drifts', 'error'
    at: int | None = None  # the first token that differs
    divergence: float | None = None


class ComparisonResult(msgspec.Struct):
    """The comparison of two configurations over the items of one task ('' for all tasks)."""

    base: str
    candidate: str
    kind: str  # 'accuracy' or 'tokens'
    task: str
    verdict: Verdict
    words: str  # the verdict as a sentence
    items: int = 0
    lost: int = 0
    gained: int = 0
    errors: int = 0
    drop: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    # The larger difference: of logprobs, or of the leads over the runner-up.
    noise: float | None = None  # the largest difference between two runs of the base
    divergence: float | None = None  # the largest difference from the base
    mean_divergence: float | None = None
    differences: list[AnswerDifference] = []

    def __post_init__(self) -> None:
        require_word(self.verdict, COMPARISON_VERDICTS)


class PlantedFault(msgspec.Struct):
    """A planted toggle, and the comparisons that detected it."""

    toggle: str
    configuration: str
    served: str  # the name of the configuration with the fault
    expected: bool  # an evaluation has to detect it
    caught: bool
    by: list[str]  # descriptions of the comparisons that detected it
    user_sees: str  # 'crash', 'wrong answers', 'other words', 'nothing'
    reach: int = 0
    absent: str = ""
    unconfirmed: str = ""  # why what was seen does not prove that the fault shows


class Evaluation(msgspec.Struct):
    """One call of `unfix eval` with its results."""

    id: str
    name: str  # the matrix, or the command
    command: str
    started: float
    seconds: float
    status: RunStatus
    device: str
    seed: int
    items: int
    alpha: float
    cells: int  # number of comparisons that share the rate of false alarms
    smallest_drop: float | None  # detectable with 95 % power
    served: list[ServedConfiguration] = []
    compared: list[ComparisonResult] = []
    faults: list[PlantedFault] = []
    machine: dict[str, str] = {}

    def find_configuration(self, name: str) -> ServedConfiguration:
        return next(served for served in self.served if served.name == name)

    @property
    def planted_names(self) -> set[str]:
        """Return the names of the configurations with a planted fault."""
        return {fault.served for fault in self.faults}

    @property
    def failed_comparisons(self) -> list[ComparisonResult]:
        """Return the comparisons with a bad verdict, except those of planted faults."""
        return [
            one
            for one in self.compared
            if not one.verdict.is_good and one.candidate not in self.planted_names
        ]

    @property
    def missed_faults(self) -> list[PlantedFault]:
        return [fault for fault in self.faults if fault.expected and not fault.caught]

    @property
    def problems(self) -> list[str]:
        """Return every reason why the evaluation is not green; one is that it has no comparison."""
        problems: list[str] = []
        problems += self.status.problems
        if not any(served.answers for served in self.served):
            problems.append("nothing was answered")
        elif all(one.verdict is Verdict.NA for one in self.compared):
            problems.append("nothing was compared")
        for served in self.served:
            if served.name not in self.planted_names:
                problems += served.problems
        for one in self.failed_comparisons:
            where = f" ({one.task})" if one.task else ""
            words = one.words.removeprefix(f"{one.verdict}: ")
            problems.append(f"{one.candidate} against {one.base}{where}: {one.verdict}: {words}")
        for fault in self.missed_faults:
            reason = fault.absent or fault.unconfirmed
            why = f": {reason}" if reason else ""
            problems.append(f"{fault.toggle} in {fault.configuration} was not noticed{why}")
        return problems

    @property
    def green(self) -> bool:
        return not self.problems
