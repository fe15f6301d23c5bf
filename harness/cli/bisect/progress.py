"""How a search goes, on stderr: a line a run."""

from __future__ import annotations

from harness.bisect.hunt import Teller
from harness.cli.watching import Watching
from harness.store.bisect.values import Part, Trial


class Progress(Watching, Teller):
    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[str, Part] = {}

    def began(self, part: Part) -> None:
        self.parts[part.name] = part
        verb = "taken out" if part.direction == "revert" else "put in"
        self.say(f"SGLang {part.where}: {len(part.toggles)} toggles can be {verb}")

    def ran(self, trial: Trial, number: int) -> None:
        part = self.parts.get(trial.part)
        where = "" if part else f" on {trial.where}"
        names = trial.toggles
        count = f"{len(names)} of {len(part.toggles)}" if part else f"{len(names)} toggles"
        what = "nothing toggled" if not names else names[0] if len(names) == 1 else count
        proof = ", proof" if trial.why == "proof" else ""
        self.say(f"run {number}{where}, {what}{proof}: {trial.answer.value} ({trial.how})")
