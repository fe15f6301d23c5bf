"""Rules for the outcome of a run: the command passes, fails, or is inconclusive."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.core import process_exit
from harness.core.errors import UnfixError
from harness.core.outcomes import Outcome, Verdict
from harness.workers.command_supervisor import CommandExit

PASSES, FAILS, CANNOT_TELL = Verdict.PASSES, Verdict.FAILS, Verdict.CANNOT_TELL
Judgement = tuple[Verdict, str, float | None]
EXIT_CANNOT_TELL = 125  # the exit code of 'cannot tell', as for `git bisect run`
MAX_LAST_LINE = 120  # letters of an output's last line
SHELL_NOT_FOUND_CODES = (126, 127)  # a shell's exit codes for an unknown command


@dataclass(frozen=True)
class OutcomeRules:
    """The caller's rules for the outcome of a run."""

    metric: str = ""  # a pattern whose first group is a number
    below: float | None = None  # a run with a lower number fails
    above: float | None = None  # a run with a higher number fails
    symptom: str = ""  # a failure counts only if the output matches this

    def check(self) -> None:
        for name, pattern in (("--metric", self.metric), ("--symptom", self.symptom)):
            try:
                groups = re.compile(pattern).groups
            except re.error as error:
                raise UnfixError(f"{name} {pattern!r} is no regular expression: {error}") from error
            if name == "--metric" and pattern and groups != 1:
                raise UnfixError(f"--metric {pattern!r} needs one group, around the number")
        if bool(self.metric) != (self.below is not None or self.above is not None):
            raise UnfixError("--metric goes with --below or --above, and they with it")

    def judge(self, ended: CommandExit | None, time_limit: float, output: str) -> Judgement:
        """Return a run's answer, its reason in a few words, and the metric's value if any."""
        answer, how, value = self._judge_exit(ended, time_limit, output)
        return *self.apply_symptom(answer, how, output), value

    def apply_symptom(self, answer: Verdict, how: str, output: str) -> tuple[Verdict, str]:
        """Make a failure without the symptom in its output inconclusive."""
        if answer is FAILS and self.symptom and not re.search(self.symptom, output, re.M):
            return CANNOT_TELL, f"{how}, but not with the symptom"
        return answer, how

    def _judge_exit(self, ended: CommandExit | None, time_limit: float, output: str) -> Judgement:
        if ended is None or ended.kind is Outcome.STOPPED:
            return CANNOT_TELL, "its supervisor was stopped", None
        if ended.kind is Outcome.URL_TAKEN:
            return CANNOT_TELL, "something answers at the server's URL already", None
        if ended.kind is Outcome.NOT_FOUND:
            return CANNOT_TELL, f"it cannot be run: {ended.detail}", None
        if ended.kind is Outcome.HANG:
            return FAILS, f"hang: {ended.detail} within {time_limit:g} s", None
        code = ended.code or 0
        words = _describe_exit_code(code)
        if ended.kind is Outcome.SERVER_ENDED:
            return FAILS, f"the server ended {ended.detail} ({words})", None
        if code in SHELL_NOT_FOUND_CODES:
            return CANNOT_TELL, f"{words}: there is no such command", None
        if code == EXIT_CANNOT_TELL:
            return CANNOT_TELL, words, None
        if self.metric:
            return self._judge_metric(code, words, output)
        if code:
            return FAILS, f"{words}{_format_last_line(output)}", None
        return PASSES, words, None

    def _judge_metric(self, code: int, exit_text: str, output: str) -> Judgement:
        if code:
            return CANNOT_TELL, f"{exit_text}, so its number does not count", None
        matches = re.findall(self.metric, output, re.MULTILINE)
        if not matches:
            return CANNOT_TELL, "no line matches --metric", None
        try:
            value = float(matches[-1])
        except ValueError:
            return CANNOT_TELL, f"--metric matches {matches[-1]!r}, which is no number", None
        # `not >=` rather than `<`: NaN fails.
        if self.below is not None and not value >= self.below:
            return FAILS, f"{value:g} is below {self.below:g}", value
        if self.above is not None and not value <= self.above:
            return FAILS, f"{value:g} is above {self.above:g}", value
        return PASSES, f"{value:g}", value


def _format_last_line(output: str) -> str:
    """Return the last line of a failing command's output, which is usually the error."""
    lines = [line.strip() for line in output.splitlines() if not line.startswith("unfix: ")]
    last = next((line for line in reversed(lines) if line), "")
    return f": {last[:MAX_LAST_LINE]}" if last else ""


def _describe_exit_code(code: int) -> str:
    """Describe an exit code; a shell adds 128 to the number of a signal."""
    number = -code if code < 0 else code - 128
    if code < 0 or 128 < code < 160:
        return f"killed by {process_exit.get_signal_name(number)}"
    return f"exit code {code}"
