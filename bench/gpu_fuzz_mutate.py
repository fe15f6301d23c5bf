"""`unfix fuzz` and `unfix mutate` on a card beside `unfix prove`, in one run on one machine.

    python -m bench.gpu_fuzz_mutate [--record FILE]      (in unfix's own environment)

All three run the guards of `--suite` with so many jobs. `prove` is the measure: the seconds of its
applied sides, with what it adds to each. It runs twice, since its first run compiles kernels that
all later ones find: the second one is the measure, and the first is recorded as well. A ratio is
the seconds that `prove` takes for the same work, by the seconds of the other command: 0.5 is half
as fast. Both contain whatever a process costs there: its fork, CUDA's start, the kernels that it
prepares. As a fault in a kernel has it compiled anew, which `prove` does in its first run alone, a
second ratio leaves out on both sides what was spent on compiling.

`fuzz`: the same work of an example is a fortieth of the guard's applied side, as that draws 40 at
most. Of the search, times the jobs, each test has the part that its slices have of all slices'.

`mutate`: the same work are the guards that passed as a whole, with a fault or without, and no lines
recorded. To the seconds of each comes its part of what attempts took beyond their guards. A guard
that fails has no counterpart on the applied side: it counts in the rate of all guard runs alone.

The whole ends in `--seconds`.
"""

from __future__ import annotations

import contextlib
import io
import json
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bench.recording import make_parser, record_result
from harness.cli import main as command_line
from harness.core import paths
from harness.guards.profiles import DEFAULT_PROFILE, EXAMPLES_BY_PROFILE
from harness.runs.mutate.attempt_pool import AttemptPool, PendingAttempt
from harness.runs.mutate.messages import FaultAttemptReport
from harness.store.prove.values import RepeatMode, SideOutcome, SideResult
from harness.workers.engine import Assignment
from harness.workers.shared_process import ENDED_PHRASE
from harness.workers.shared_runs import WAITED_PHRASE

SUITES = ("kv_indices", "int64_indices")
EXAMPLES = EXAMPLES_BY_PROFILE[DEFAULT_PROFILE]
END_SECONDS = 15.0  # for a stopped run to store its results


def run_unfix(words: list[str], seconds: float) -> dict[str, Any]:
    """Run a command to its end, or stop it as Ctrl-C does; return its result."""
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", *words, "--json"],
        cwd=paths.project_folder(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, problem = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        output, problem = process.communicate(timeout=END_SECONDS)
    if not output:
        raise SystemExit(f"{words}: {problem}")
    result: dict[str, Any] = json.loads(output)
    return result


# prove


@dataclass(frozen=True)
class GuardSeconds:
    """The mean seconds of guards' applied sides, and those of them that went into compiling."""

    whole: dict[str, float]
    compiling: dict[str, float]

    def compute_ratio(
        self, work: Mapping[str, float], spent: float, compiling: float
    ) -> dict[str, float | None]:
        """Return the ratios for so many runs of each guard that took these seconds elsewhere."""
        whole = sum(self.whole[guard] * runs for guard, runs in work.items())
        own_compiling = sum(self.compiling[guard] * runs for guard, runs in work.items())
        return {
            "their_seconds": round(spent, 2),
            "of_these_compiling": round(compiling, 2),
            "seconds_of_prove_for_the_same": round(whole, 2),
            "of_those_compiling": round(own_compiling, 2),
            "by_prove": round(whole / spent, 2) if spent else None,
            "by_prove_without_compiling": (
                round((whole - own_compiling) / (spent - compiling), 2)
                if spent > compiling
                else None
            ),
        }


def measure_prove(run: dict[str, Any]) -> tuple[dict[str, Any], GuardSeconds]:
    """Return what a run says, and the seconds of each guard's applied side."""
    sides: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for cell in run["cells"]:
        side = cell["sides"].get("fixed", {})
        if side.get("outcome") == "passed":
            sides[cell["guard"]].append(side)
    guards = GuardSeconds(
        {
            guard: statistics.fmean(side["seconds"] + side["overhead"] for side in each)
            for guard, each in sides.items()
        },
        {
            guard: statistics.fmean(side["compile_seconds"] for side in each)
            for guard, each in sides.items()
        },
    )
    seconds = sum(guards.whole.values())
    result = {
        "seconds": round(run["seconds"], 1),
        "seconds_to_start": round(run["releases"][0]["seconds_to_start"], 1),
        "cells": run["counts"],
        "guards": len(guards.whole),
        "applied_seconds": round(seconds, 2),
        "of_these_compiling": round(sum(guards.compiling.values()), 2),
        "guards_a_second": round(len(guards.whole) / seconds, 3),
    }
    return result, guards


# fuzz


def measure_fuzz(run: dict[str, Any], jobs: int, guards: GuardSeconds) -> dict[str, Any]:
    """Return what a run says, and its examples a second by those of `prove`."""
    tests = [test for test in run["tests"] if not test["left_out"]]
    matched = [test for test in tests if test["test"] in guards.whole and test["examples"]]
    work = {test["test"]: test["examples"] / EXAMPLES for test in matched}
    in_slices = sum(test["seconds"] for test in tests)
    part = sum(test["seconds"] for test in matched) / in_slices
    spent = run["search_seconds"] * jobs * part
    examples = sum(test["examples"] for test in matched)
    return {
        "budget_s": run["budget"],
        "seconds": round(run["seconds"], 1),
        "search_seconds": round(run["search_seconds"], 1),
        "seconds_in_slices": round(in_slices, 1),  # of the search, times the jobs
        "tests": len(tests),
        "slices": sum(test["slices"] for test in tests),
        "examples": sum(test["examples"] for test in tests),
        "failures": [f"{one['repro']['test']}: {one['repro']['error']}" for one in run["failures"]],
        "problems": run["problems"],
        "guards_of_prove": len(matched),
        "their_examples": examples,
        "examples_a_second": round(examples / spent, 2),
        **guards.compute_ratio(work, spent, sum(test["compile_seconds"] for test in matched)),
    }


# mutate


class AttemptClock:
    """Measures the attempts of a run in this process, from the request to the report."""

    def __init__(self) -> None:
        self.attempts: list[tuple[PendingAttempt, FaultAttemptReport, float]] = []
        self.process_ends: list[str] = []
        self.waits: list[float] = []  # seconds of attempts that waited for their process

    @contextlib.contextmanager
    def measure(self) -> Any:
        send, end = AttemptPool.send_item, AttemptPool.end_workers

        def send_timed(pool: AttemptPool, assignment: Assignment[PendingAttempt]) -> None:
            pending = assignment.item
            on_report, begun = pending.on_report, time.monotonic()

            def report(ended: FaultAttemptReport, names: list[str]) -> None:
                pending.on_report = on_report  # it may be sent again
                self.attempts.append((pending, ended, time.monotonic() - begun))
                on_report(ended, names)

            pending.on_report = report
            send(pool, assignment)

        def end_with_log(pool: AttemptPool) -> None:
            end(pool)
            log = pool.folder / "worker.log"
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            self.process_ends += [line for line in lines if line.startswith(ENDED_PHRASE)]
            waits = [line for line in lines if line.startswith(WAITED_PHRASE)]
            self.waits += [float(line.split()[-2]) for line in waits]

        AttemptPool.send_item = send_timed  # type: ignore[method-assign]
        AttemptPool.end_workers = end_with_log  # type: ignore[method-assign]
        try:
            yield
        finally:
            AttemptPool.send_item = send  # type: ignore[method-assign]
            AttemptPool.end_workers = end  # type: ignore[method-assign]


def iterate_whole_passes(
    pending: PendingAttempt, report: FaultAttemptReport
) -> Iterator[tuple[str, SideResult]]:
    """Yield the guards that passed in an attempt as `prove` runs them."""
    is_whole = pending.repeated is None or pending.repeated.way is RepeatMode.WHOLE
    if not is_whole or pending.trace or pending.example_factor > 1:
        return
    for result, name in zip(report.results, pending.guard_names, strict=False):
        if result.side.outcome is SideOutcome.PASSED and not result.conflict:
            yield name, result.side


def measure_mutate(
    clock: AttemptClock, run: dict[str, Any], guards: GuardSeconds
) -> dict[str, Any]:
    """Return what a run says, and the seconds of `prove` by its own for guards that pass."""
    attempts = [each for each in clock.attempts if not each[0].trace]
    sides = [each.side for _, report, _ in attempts for each in report.results]
    beyond = [
        seconds - sum(each.side.seconds for each in report.results)
        for _, report, seconds in attempts
    ]
    passes = [
        (name, side)
        for pending, report, _ in attempts
        for name, side in iterate_whole_passes(pending, report)
        if name in guards.whole
    ]
    spent = sum(side.seconds for _, side in passes)
    spent += len(passes) * sum(beyond) / max(1, len(sides))
    everything = sum(seconds for _, _, seconds in attempts)
    compiling = sum(side.compile_seconds for side in sides)
    return {
        "status": run["status"],
        "seconds": round(run["seconds"], 1),
        "seconds_to_start": round(run["seconds_to_start"], 1),
        "seconds_to_reach": round(run.get("seconds_to_reach", 0.0), 1),
        "fates": dict(Counter(each["fate"] for each in run["fates"])),
        "whys": [f"{each['fate']}: {each['why']}" for each in run["fates"] if each.get("why")],
        "problems": run["problems"],
        "attempts": len(attempts),
        "guard_runs": len(sides),
        "guard_runs_a_second": round(len(sides) / everything, 3) if everything else None,
        "guards_s": summarize_seconds([side.seconds for side in sides]),
        "compiling_s": summarize_seconds([side.compile_seconds for side in sides]),
        "part_of_compiling": round(compiling / everything, 3) if everything else None,
        "process_ends": clock.process_ends,
        "waits_for_a_process_s": summarize_seconds(clock.waits),
        "beyond_the_guards_s": summarize_seconds(beyond),
        "passing_guard_runs": len(passes),
        **guards.compute_ratio(
            Counter(name for name, _ in passes),
            spent,
            sum(side.compile_seconds for _, side in passes),
        ),
    }


def summarize_seconds(seconds: list[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    return {
        "count": len(seconds),
        "sum": round(sum(seconds), 1),
        "median": round(statistics.median(seconds), 3),
        "mean": round(statistics.fmean(seconds), 3),
        "most": round(max(seconds), 3),
    }


def run_mutate(words: list[str], seconds: float, clock: AttemptClock) -> dict[str, Any]:
    """Run the command in this process, and stop it as Ctrl-C does when its time is over."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, stop)
    output = io.StringIO()
    signal.setitimer(signal.ITIMER_REAL, max(1.0, seconds))
    try:
        with contextlib.redirect_stdout(output), clock.measure():
            command_line.main([*words, "--json"])
    except (KeyboardInterrupt, SystemExit):
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    result: dict[str, Any] = json.loads(output.getvalue())
    return result


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--release", default="current")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--suite", nargs="*", default=SUITES)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--budget", type=int, default=60, help="seconds of fuzzing")
    parser.add_argument("--limit", type=int, default=40, help="faults")
    parser.add_argument("--seconds", type=float, default=380.0, help="of the whole")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    common = ["--release", arguments.release, "--device", arguments.device]
    common += ["-j", str(arguments.jobs)]
    suites = [f"suites/{name}" for name in arguments.suite]

    def run_prove(name: str, part: float) -> tuple[Any, dict[str, Any], GuardSeconds]:
        proof = run_unfix(["prove", *suites, *common], arguments.seconds * part)
        measured = measure_prove(proof)
        report_progress(name, measured[0])
        return proof, *measured

    _, first_prove, _ = run_prove("the first prove", 0.35)
    proof, prove, guards = run_prove("prove", 0.25)
    search = ["fuzz", *suites, *common, "--for", f"{arguments.budget}s", "--seed", "1"]
    fuzz = measure_fuzz(run_unfix(search, arguments.seconds * 0.4), arguments.jobs, guards)
    report_progress("fuzz", fuzz)
    clock = AttemptClock()
    words = ["mutate", *arguments.suite, "--limit", str(arguments.limit), *common]
    words += [word for suite in suites for word in ("--suite", suite)]
    faults = run_mutate(words, end - END_SECONDS - time.monotonic(), clock)
    result = {
        "release": proof["releases"][0]["versions"],
        "device": arguments.device,
        "suites": suites,
        "jobs": arguments.jobs,
        "first_prove": first_prove,
        "prove": prove,
        "fuzz": fuzz,
        "mutate": measure_mutate(clock, faults, guards),
    }
    record_result(result, arguments.record)
    return 0


def report_progress(name: str, result: dict[str, Any]) -> None:
    print(name, json.dumps(result), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
