"""Parts run side by side, so many at a time; what each came to."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from harness.cli.test.counting import OUTCOMES
from harness.cli.test.parts import Part

RAN = tuple(outcome for outcome in OUTCOMES if outcome != "warnings")
NOT_BEGUN, NONE_RAN = 4, 5  # pytest's exit codes


@dataclass(frozen=True)
class Ended:
    """What a part came to."""

    part: Part
    code: int
    seconds: float
    counts: Counter[str]
    skipped: tuple[tuple[str, str], ...]
    output: str

    @property
    def tests(self) -> int:
        return sum(self.counts[outcome] for outcome in RAN)

    @property
    def refused(self) -> str:
        """Why pytest did not begin: of words that it cannot read no other part reads more."""
        said = self.output.partition(": error: ")[2] if self.code == NOT_BEGUN else ""
        return said.partition("\n")[0]

    def is_green(self, chosen: bool) -> bool:
        """With tests chosen by the caller, a part may have none of them."""
        if self.tests == 0:
            return chosen and self.code == NONE_RAN
        return self.code == 0


def environment(part: Part, root: Path) -> dict[str, str]:
    # A release that each process compiles anew takes twice as long to import.
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**ours, "PYTHONPATH": str(root)}


def command(part: Part, words: Sequence[str]) -> list[str]:
    return [part.python, "-m", "pytest", *part.words, *words]


def run(
    parts: Sequence[Part],
    words: Sequence[str],
    root: Path,
    cores: int,
    begins: Callable[[Part], None],
) -> Iterator[Ended]:
    """Each part as it ends."""
    pool = ThreadPoolExecutor(cores)
    try:
        going = [pool.submit(_one, part, words, root, begins) for part in parts]
        for done in as_completed(going):
            yield done.result()
    finally:
        # After a Ctrl-C the processes that run are ended by whoever owns them; none begins.
        pool.shutdown(wait=False, cancel_futures=True)


def _one(part: Part, words: Sequence[str], root: Path, begins: Callable[[Part], None]) -> Ended:
    begins(part)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="unfix-test-") as folder:
        file = Path(folder) / "counts.json"
        counting = ["-p", "harness.cli.test.counting", "--counts", str(file)]
        done = subprocess.run(
            [*command(part, words), *counting],
            cwd=root,
            env=environment(part, root),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        said = json.loads(file.read_text()) if file.exists() else {"counts": {}, "skipped": []}
    return Ended(
        part,
        done.returncode,
        time.monotonic() - began,
        Counter(said["counts"]),
        tuple((node, reason) for node, reason in said["skipped"]),
        done.stdout,
    )
