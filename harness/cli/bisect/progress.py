"""How a search goes, on stderr: a line a run."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from harness.bisect.hunt import Teller
from harness.store.bisect.values import Part, Trial


class Progress(Teller):
    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.parts: dict[str, Part] = {}

    def began(self, part: Part) -> None:
        self.parts[part.name] = part
        verb = "taken out" if part.direction == "revert" else "put in"
        self._say(f"SGLang {part.where}: {len(part.toggles)} toggles can be {verb}")

    def ran(self, trial: Trial, number: int) -> None:
        part = self.parts.get(trial.part)
        where = "" if part else f" on {trial.where}"
        names = trial.toggles
        count = f"{len(names)} of {len(part.toggles)}" if part else f"{len(names)} toggles"
        what = "nothing toggled" if not names else names[0] if len(names) == 1 else count
        proof = ", proof" if trial.why == "proof" else ""
        self._say(f"run {number}{where}, {what}{proof}: {trial.answer.value} ({trial.how})")

    def _say(self, text: str) -> None:
        self.console.print(f"unfix: {escape(text)}")
