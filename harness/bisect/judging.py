"""What a run of a command says: it passes, it fails, or it cannot be told."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from harness import processes
from harness.errors import UnfixError
from harness.store.bisect.values import Answer

SKIP = 125  # the exit code that says 'cannot tell', as for `git bisect run`
LONGEST = 120  # letters of an output's last line
NOT_FOUND = (126, 127)  # how a shell says that there is no such command


@dataclass(frozen=True)
class Rules:
    """How the caller wants a run to be judged."""

    metric: str = ""  # a pattern whose first group is a number
    below: float | None = None  # it fails if the number is lower
    above: float | None = None  # or higher
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

    def judge(self, seen: dict[str, Any], output: str) -> tuple[Answer, str, float | None]:
        """The answer, in a few words how it came to it, and the number if there is one."""
        answer, how, value = self._outcome(seen, output)
        return *self.symptomatic(answer, how, output), value

    def symptomatic(self, answer: Answer, how: str, output: str) -> tuple[Answer, str]:
        if answer is Answer.FAILS and self.symptom and not re.search(self.symptom, output, re.M):
            return Answer.CANNOT_TELL, f"{how}, but not with the symptom"
        return answer, how

    def _outcome(self, seen: dict[str, Any], output: str) -> tuple[Answer, str, float | None]:
        how = seen["how"]
        if how == "taken":
            return Answer.CANNOT_TELL, "something answers at the server's URL already", None
        if how == "missing":
            return Answer.CANNOT_TELL, f"it cannot be run: {seen['error']}", None
        if how == "lost":
            return Answer.CANNOT_TELL, "the process that looked after it was ended", None
        if how == "hang":
            return Answer.FAILS, f"hang: {seen['when']} within {seen['limit']:g} s", None
        words = _code(seen["code"])
        if how == "server":
            return Answer.FAILS, f"the server ended {seen['when']} ({words})", None
        if seen["code"] in NOT_FOUND:
            return Answer.CANNOT_TELL, f"{words}: there is no such command", None
        if seen["code"] == SKIP:
            return Answer.CANNOT_TELL, words, None
        if self.metric:
            return self._number(seen["code"], words, output)
        if seen["code"]:
            return Answer.FAILS, f"{words}{_last_line(output)}", None
        return Answer.PASSES, words, None

    def _number(self, code: int, words: str, output: str) -> tuple[Answer, str, float | None]:
        if code:
            return Answer.CANNOT_TELL, f"{words}, so its number does not count", None
        found = re.findall(self.metric, output, re.MULTILINE)
        try:
            value = float(found[-1])
        except IndexError:
            return Answer.CANNOT_TELL, "no line matches --metric", None
        except ValueError:
            return Answer.CANNOT_TELL, f"--metric matches {found[-1]!r}, which is no number", None
        if self.below is not None and not value >= self.below:
            return Answer.FAILS, f"{value:g} is below {self.below:g}", value
        if self.above is not None and not value <= self.above:
            return Answer.FAILS, f"{value:g} is above {self.above:g}", value
        return Answer.PASSES, f"{value:g}", value


def _last_line(output: str) -> str:
    """The end of what a failing command said, since that is mostly the error."""
    said = [line.strip() for line in output.splitlines() if not line.startswith("unfix: ")]
    last = next((line for line in reversed(said) if line), "")
    return f": {last[:LONGEST]}" if last else ""


def _code(code: int) -> str:
    """An exit code in words; a shell tells of a signal by 128 and its number."""
    number = -code if code < 0 else code - 128
    if code < 0 or 128 < code < 160:
        return f"killed by {processes.signal_name(number)}"
    return f"exit code {code}"
