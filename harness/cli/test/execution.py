"""The execution of `unfix test`: runs parts concurrently, up to a limit."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from harness.cli.test.outcome_counts import OUTCOMES
from harness.cli.test.partition import PytestPart
from harness.patching.child_environment import PYTHON_PATH_VARIABLE, ChildEnvironment

TEST_OUTCOMES = tuple(outcome for outcome in OUTCOMES if outcome != "warnings")
USAGE_ERROR_CODE, NO_TESTS_CODE = 4, 5  # pytest's exit codes


@dataclass(frozen=True)
class PytestPartResult:
    part: PytestPart
    exit_code: int
    seconds: float
    counts: Counter[str]
    skipped: tuple[tuple[str, str], ...]
    output: str

    @property
    def test_count(self) -> int:
        return sum(self.counts[outcome] for outcome in TEST_OUTCOMES)

    @property
    def usage_error(self) -> str:
        """Return why pytest refused its arguments, which are the same for every part."""
        if self.exit_code != USAGE_ERROR_CODE:
            return ""
        return self.output.partition(": error: ")[2].partition("\n")[0]

    def is_green(self, tests_were_chosen: bool) -> bool:
        """Return whether the part is green; with tests chosen by the caller, it may be empty."""
        if self.test_count == 0:
            return tests_were_chosen and self.exit_code == NO_TESTS_CODE
        return self.exit_code == 0


def make_environment(root: Path) -> dict[str, str]:
    # Without bytecode files, importing a release takes twice as long.
    return ChildEnvironment({PYTHON_PATH_VARIABLE: str(root)}, without=["PYTHONDONTWRITEBYTECODE"])


def build_pytest_command(part: PytestPart, words: Sequence[str]) -> list[str]:
    return [part.python, "-m", "pytest", *part.arguments, *words]


def run_parts(
    parts: Sequence[PytestPart],
    words: Sequence[str],
    root: Path,
    width: int,
    on_start: Callable[[PytestPart], None],
) -> Iterator[PytestPartResult]:
    """Yield the result of each part, as soon as it ends."""
    pool = ThreadPoolExecutor(width)
    try:
        futures = [pool.submit(_run_part, part, words, root, on_start) for part in parts]
        for future in as_completed(futures):
            yield future.result()
    finally:
        # After a Ctrl-C the caller kills the running processes, and no other one starts.
        pool.shutdown(wait=False, cancel_futures=True)


def _run_part(
    part: PytestPart, words: Sequence[str], root: Path, on_start: Callable[[PytestPart], None]
) -> PytestPartResult:
    on_start(part)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="unfix-test-") as folder:
        file = Path(folder) / "counts.json"
        counting = ["-p", "harness.cli.test.outcome_counts", "--counts", str(file)]
        done = subprocess.run(
            [*build_pytest_command(part, words), *counting],
            cwd=root,
            env=make_environment(root),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        report = json.loads(file.read_text()) if file.exists() else {"counts": {}, "skipped": []}
    return PytestPartResult(
        part,
        done.returncode,
        time.monotonic() - started,
        Counter(report["counts"]),
        tuple((node, reason) for node, reason in report["skipped"]),
        done.stdout,
    )
