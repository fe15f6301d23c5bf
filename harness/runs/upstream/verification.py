"""The test of a finding on a copy of a release: it fails there, and passes with the patch.

Nothing of this project is on the path of these processes. A test that is registered for CUDA alone
runs on a machine with a GPU, which records its outcome for all others; a record counts for the same
patch, test and release.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import queue
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from harness.core import machine, paths
from harness.core.code_digest import compute_digest
from harness.core.errors import NotReadyError
from harness.core.git_repository import strip_git_variables
from harness.core.wording import format_count
from harness.findings import finding_files
from harness.findings.reproduction import cut_script, list_tests
from harness.findings.schema import Finding
from harness.runs.upstream.fix_patch import ReleaseCopy, copy_release
from harness.store.record_files import write_record
from harness.workers.release_target import ReleaseTarget

TEST_PROCESS = Path(__file__).with_name("test_process.py")
_FOREIGN_VARIABLES = ("UNFIX_", "SGLANG_DEBUG_", "PYTHON")


class SideOutcome(msgspec.Struct, frozen=True):
    """What a test file did on one side."""

    problem: str = ""  # why it did not run
    ran: int = 0
    bad: list[tuple[str, str, str]] = []  # test, class of the error, message
    skipped: list[str] = []
    foreign: list[str] = []  # modules of this project
    sglang: str = ""  # the file of the package
    microseconds: dict[str, float] = {}  # of a launch, by its label
    log: str = ""

    def describe(self) -> str:
        if self.problem:
            return self.problem
        if self.bad:
            _, error, message = self.bad[0]
            if error == "SystemExit":
                return f"exits with {message}"
            return f"fails: {error}: {message.partition(chr(10))[0]}"
        return f"passes ({format_count(self.ran, 'test')})"


_NOT_RUN = SideOutcome()


class VerifiedState(Enum):
    VERIFIED = "verified"
    FAILED = "not verified"
    NEEDS_GPU = "not verified: needs a GPU"


@dataclass(frozen=True)
class Verification:
    state: VerifiedState
    where: str
    released: SideOutcome = _NOT_RUN
    patched: SideOutcome = _NOT_RUN
    problem: str = ""
    script: tuple[SideOutcome, SideOutcome] | None = None


@dataclass(frozen=True)
class PatchedFinding:
    """A finding with its patch for one release."""

    finding: Finding
    patch: str

    @property
    def test_file(self) -> Path:
        return finding_files.get_test_file(self.finding.name)

    @property
    def launches_file(self) -> Path:
        return finding_files.get_launches_file(self.finding.name)

    @property
    def needs_gpu(self) -> bool:
        return finding_files.needs_gpu(self.test_file.read_text(encoding="utf-8"))

    @property
    def is_interpreted(self) -> bool:
        return "TRITON_INTERPRET" in self.test_file.read_text(encoding="utf-8")

    def cut_script(self, released: SideOutcome | None = None) -> str:
        """Cut the script from the first test that fails as released, or else the first at all."""
        text = self.test_file.read_text(encoding="utf-8")
        bad = released.bad if released is not None else []
        test = bad[0][0].split()[0] if bad else next(iter(list_tests(text)), "")
        return cut_script(text, test) if test in list_tests(text) else ""

    def compute_digest(self, release: str) -> str:
        return compute_digest(release, self.patch, self.test_file.read_bytes())

    def compute_launches_digest(self, release: str) -> str:
        return compute_digest(release, self.patch, self.launches_file.read_bytes())


class RecordedTest(msgspec.Struct, frozen=True):
    digest: str  # of release, patch and test
    released: SideOutcome
    patched: SideOutcome
    script: tuple[SideOutcome, SideOutcome] | None = None  # as released, and with the patch


class RecordedLaunches(msgspec.Struct, frozen=True):
    """What a launch took on a GPU as released and with the patch, in microseconds, by its label."""

    digest: str  # of release, patch and launches
    date: str
    released: dict[str, float]
    patched: dict[str, float]


class GpuRecord(msgspec.Struct, frozen=True):
    """What a machine with a GPU saw."""

    gpu: str
    date: str
    tests: dict[str, RecordedTest]
    launches: dict[str, RecordedLaunches] = {}


def find_problem(finding: Finding, released: SideOutcome, patched: SideOutcome) -> str:
    """Return why two outcomes do not show the bug and its fix, or ''."""
    for side, outcome in (("as released", released), ("with the patch", patched)):
        if outcome.problem:
            return f"{side} {outcome.problem}"
        if not outcome.ran or outcome.skipped:
            return f"{side} it runs {outcome.ran} tests and skips {len(outcome.skipped)}"
        if outcome.foreign:
            return f"{side} it imports {outcome.foreign[0]}"
    for test, error, message in released.bad:
        if error not in _REPORTS and not finding.names_error(error):
            return (
                f"as released {test} ends with {error}: {message}; that is no assertion, nor an "
                "error that the finding names"
            )
    if not released.bad:
        return "it passes as released"
    return f"with the patch it {patched.describe()}" if patched.bad else ""


_REPORTS = ("AssertionError", "SystemExit")  # of the bug, by a test and by a script


class CopyLane:
    """A copy of the release, and a process of its Python that runs tests of one kind on it.

    A test that sets TRITON_INTERPRET is of another kind: it needs that before any import. What is
    imported for one test serves all of its kind; a lane of both kinds would import all of it twice.
    """

    def __init__(self, copy: ReleaseCopy, target: ReleaseTarget, interprets: bool) -> None:
        self.copy, self.target = copy, target
        environment = {
            name: value
            for name, value in strip_git_variables().items()
            if not name.startswith(_FOREIGN_VARIABLES)
        }
        interpreted = {"TRITON_INTERPRET": "1"} if interprets else {}
        self._process = subprocess.Popen(
            [
                target.python,
                "-P",
                TEST_PROCESS,
                *([] if target.device == "cuda" else ["--preload"]),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=copy.folder,
            env={**environment, "PYTHONDONTWRITEBYTECODE": "1", **interpreted},
        )

    def run_both_sides(self, item: PatchedFinding) -> RecordedTest:
        """Run the test as released and patched, and the script that is cut from what failed."""
        files, released = [item.test_file], [self._run_file(item.test_file)]
        if text := item.cut_script(released[0]):
            files.append(self.copy.folder / "repro.py")
            files[1].write_text(text, encoding="utf-8")
            released.append(self._run_file(files[1]))
        with self.copy.apply_patch(item.patch):
            patched = [self._run_file(file) for file in files]
        sides = list(zip(released, patched, strict=True))
        return RecordedTest(item.compute_digest(self.target.name), *sides[0], *sides[1:])

    def time_launches(self, item: PatchedFinding) -> RecordedLaunches:
        """Time the launches of each side twice, in turns; the shorter time counts."""
        sides: list[dict[str, float]] = [{}, {}]
        for turn in range(4):
            patched = self.copy.apply_patch(item.patch) if turn % 2 else contextlib.nullcontext()
            with patched:
                outcome = self._run_file(item.launches_file)
            if outcome.problem or outcome.foreign:
                problem = outcome.problem or f"imports {outcome.foreign[0]}"
                raise NotReadyError(f"{item.launches_file} {problem}")
            for label, time in outcome.microseconds.items():
                sides[turn % 2][label] = round(min(time, sides[turn % 2].get(label, time)), 2)
        digest = item.compute_launches_digest(self.target.name)
        return RecordedLaunches(digest, datetime.date.today().isoformat(), *sides)

    def _run_file(self, file: Path) -> SideOutcome:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        job = {"file": str(file), "root": str(self.copy.import_folder)}
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            return SideOutcome(f"the process of the tests ended with {process.wait()}")
        outcome = msgspec.convert(json.loads(line), SideOutcome)
        root = f"{self.copy.import_folder}{os.sep}"
        if outcome.ran and not outcome.sglang.startswith(root):
            return SideOutcome(f"it imports SGLang from {outcome.sglang}, not from the copy")
        return msgspec.convert(_replace_root(msgspec.to_builtins(outcome), root), SideOutcome)

    def close(self) -> None:
        self._process.communicate()


_FOLDERS = re.compile(r'(?<=File ")/[^"]*/(?=[^/"]+/[^/"]+")')  # of a traceback's files


def _replace_root(value: Any, root: str) -> Any:
    """Remove the path of the copy, and folders of the machine from tracebacks."""
    if isinstance(value, str):
        return _FOLDERS.sub("", value.replace(root, ""))
    if isinstance(value, dict):
        return {key: _replace_root(each, root) for key, each in value.items()}
    return [_replace_root(each, root) for each in value] if isinstance(value, list) else value


def run_tests(
    items: Sequence[PatchedFinding],
    target: ReleaseTarget,
    lanes: int,
    report: Callable[[str], None],
) -> dict[str, RecordedTest]:
    """Run both sides of these findings' tests; on a GPU each in a process of its own."""
    by_kind: dict[bool, queue.SimpleQueue[PatchedFinding]] = {}
    for item in items:
        interprets = target.device == "cpu" and item.is_interpreted
        by_kind.setdefault(interprets, queue.SimpleQueue()).put(item)

    def run_lane(interprets: bool) -> dict[str, RecordedTest]:
        results: dict[str, RecordedTest] = {}
        with copy_release(target.sources) as copy:
            lane = CopyLane(copy, target, interprets)
            try:
                for item in iterate_queue(by_kind[interprets]):
                    test = results[item.finding.name] = lane.run_both_sides(item)
                    words = f"{test.released.describe()}; patched: {test.patched.describe()}"
                    report(f"{item.finding.name}: {words}")
            finally:
                lane.close()
        return results

    kinds = sorted(by_kind) * max(1, lanes // 2)
    with ThreadPoolExecutor(lanes) as pool:
        parts = [pool.submit(run_lane, kind) for kind in kinds]
        return {name: test for part in parts for name, test in part.result().items()}


def time_fixes(
    items: Sequence[PatchedFinding], target: ReleaseTarget, report: Callable[[str], None]
) -> tuple[dict[str, RecordedLaunches], list[str]]:
    """Time the launches of fixes on a GPU; return also why some were not timed."""
    results: dict[str, RecordedLaunches] = {}
    problems: list[str] = []
    with copy_release(target.sources) as copy:
        lane = CopyLane(copy, target, interprets=False)
        try:
            for item in items:
                try:
                    timed = results[item.finding.name] = lane.time_launches(item)
                except NotReadyError as error:
                    problems.append(str(error))
                    continue
                for label, time in timed.released.items():
                    report(f"{item.finding.name}: {label}: {time} µs, {timed.patched[label]} µs")
        finally:
            lane.close()
    return results, problems


def find_launches(item: PatchedFinding, release: str) -> tuple[str, RecordedLaunches] | None:
    """Find what a GPU's record says of the launches, with the GPU, if it is of this patch."""
    for record in load_records():
        recorded = record.launches.get(item.finding.name)
        if recorded and recorded.digest == item.compute_launches_digest(release):
            return record.gpu, recorded
    return None


def iterate_queue(waiting: queue.SimpleQueue[PatchedFinding]) -> Iterator[PatchedFinding]:
    while True:
        try:
            yield waiting.get_nowait()
        except queue.Empty:
            return


def verify_findings(
    items: Sequence[PatchedFinding],
    target: ReleaseTarget,
    lanes: int,
    report: Callable[[str], None],
) -> dict[str, Verification]:
    """Verify findings on this machine; what needs a GPU, by the record of one."""
    has_gpu = target.device == "cuda"
    here = [item for item in items if has_gpu or not item.needs_gpu]
    where = machine.describe_gpus() if has_gpu else "CPU"
    results = {name: (test, where) for name, test in run_tests(here, target, lanes, report).items()}
    for record in load_records():
        for item in items:
            recorded = record.tests.get(item.finding.name)
            is_same = recorded and recorded.digest == item.compute_digest(target.name)
            if recorded and is_same and item not in here:
                results[item.finding.name] = recorded, f"{record.gpu}, recorded {record.date}"
    return {item.finding.name: _judge_test(item, results) for item in items}


def _judge_test(item: PatchedFinding, results: dict[str, tuple[RecordedTest, str]]) -> Verification:
    if item.finding.name not in results:
        return Verification(
            VerifiedState.NEEDS_GPU, "", problem="no record of a GPU is of this test"
        )
    test, where = results[item.finding.name]
    problem = find_problem(item.finding, test.released, test.patched)
    if not problem and test.script is not None:
        problem = find_problem(item.finding, *test.script)
        problem = problem and f"the script: {problem}"
    state = VerifiedState.FAILED if problem else VerifiedState.VERIFIED
    return Verification(state, where, test.released, test.patched, problem, test.script)


def load_records() -> list[GpuRecord]:
    files = sorted(_get_records_folder().glob("upstream-*.json"))
    return [msgspec.json.decode(file.read_bytes(), type=GpuRecord) for file in files]


def _get_records_folder() -> Path:
    return paths.project_folder() / "bench" / "recorded"


def record_tests(
    items: Sequence[PatchedFinding],
    target: ReleaseTarget,
    lanes: int,
    report: Callable[[str], None],
) -> Path:
    """Run what needs a GPU on this machine's, and add it to its record."""
    gpu = machine.describe_gpus().partition(",")[0].strip()
    tests = run_tests([item for item in items if item.needs_gpu], target, lanes, report)
    with_cost = [item for item in items if item.finding.fix.cost]
    launches, problems = time_fixes(with_cost, target, report)
    known = [record for record in load_records() if record.gpu == gpu]
    day = datetime.date.today().isoformat() if tests or not known else known[0].date
    for record in known:
        tests, launches = {**record.tests, **tests}, {**record.launches, **launches}
    record = GpuRecord(gpu, day, tests, launches)
    model = gpu.removeprefix("NVIDIA ").partition(" ")[0].lower()
    file = _get_records_folder() / f"upstream-{model}.json"
    write_record(file, msgspec.json.format(msgspec.json.encode(record)).decode() + "\n")
    if problems:
        raise NotReadyError(f"recorded in {file}, but not the time of {'; '.join(problems)}")
    return file
