"""Measures how many faults the audit reports: `narrow_int64` anywhere in a release's kernels.

    unfix audit --release R --record AUDIT
    python -m bench.narrowing AUDIT [--sizes] [--release R] [--faults N] [-j N] [--record FILE]

A seed draws faults from all that the operator makes in `@triton.jit` functions. A fault in a helper
is judged by the first two kernels that call it. AUDIT is the record of the unchanged release.

- A fault is **reported** if the audit then has a finding at a line where it had none, or a finding
  with a smaller threshold.
- A fault **matters** if launches at the limits, run under check and without the audit's arithmetic,
  overflow an integer in a line without a finding, and do not in the unchanged release; or if the
  finding that reports it was confirmed.
- A miss is a fault that matters and is not reported. Each is listed, with the audit's reasons.
- An overflow that the unchanged release has as well is counted as `unreported`.

`--sizes`: the operators that make a tensor smaller, a mask wider or a bound one off, in kernels and
in functions that launch one. Such a fault matters if launches with tensors of their true size leave
one of them, and do not in the unchanged release. These launches use other loads and shapes than the
audit, and neither its arithmetic nor its rules.
"""

from __future__ import annotations

import argparse
import collections
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.narrowing_faults import NARROW, Fault, draw_faults
from bench.recording import make_parser, read_record, record_result

SECONDS = 15  # processor time of one fault
LOADS = (1, 5, 65, 250)  # loads of launches with tensors of true size
LAUNCHES = 15  # launches at the limits, for one case of a kernel


# Triton is needed from here on.


Thresholds = dict[tuple[str, int], int]


def judge_faults(
    place: Path, faults: list[Fault], recorded: Thresholds, jobs: int
) -> list[dict[str, Any]]:
    from harness.runs.audit import kernel_discovery, lazy_release, overflow_runs, size_limits

    sys.setrecursionlimit(20_000)
    known = size_limits.read_limits()
    overflow_runs.load_launcher_state()
    world = lazy_release.LazyRelease(place)
    gc.disable()
    kernels = kernel_discovery.collect_kernels(world)
    gc.freeze()
    gc.enable()
    found: list[dict[str, Any]] = []
    with ThreadPoolExecutor(jobs) as pool:  # a thread only waits for its fork
        for result in pool.map(
            lambda fault: _judge_in_fork(place, world, kernels, fault, recorded, known), faults
        ):
            found.append(result)
            if len(found) % 20 == 0:
                counts = collections.Counter(one["verdict"] for one in found)
                print(f"{len(found)} of {len(faults)}: {dict(counts)}", file=sys.stderr)
    return found


def _judge_in_fork(
    place: Path, world: Any, kernels: Any, fault: Fault, recorded: Thresholds, known: Any
) -> dict[str, Any]:
    """Judge a fault in a fork with a time limit; report how the fork ended, if it died."""
    with tempfile.TemporaryFile() as answer:
        child = os.fork()
        if not child:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 1)
                os.dup2(nothing.fileno(), 2)
            judge = _judge_narrowing if fault.operator == NARROW else _judge_size
            try:
                result = judge(place, world, kernels, fault, recorded, known)
            except Exception as error:
                result = {"why": f"{type(error).__name__}: {error}"[:200]}
            os.write(answer.fileno(), json.dumps(result).encode())
            os._exit(0)
        os.waitpid(child, 0)
        answer.seek(0)
        text = answer.read()
    result = (
        json.loads(text) if text else {"why": f"it takes more than {SECONDS} s, or ends Triton"}
    )
    base = {
        "module": fault.module,
        "kernel": fault.kernel,
        "operator": fault.operator,
        "line": fault.line,
        "fault": fault.words,
    }
    return base | {"verdict": "cannot tell"} | result


def _judge_fault(fault: Fault, place: Path, world: Any) -> Any:
    from harness.runs.audit import lazy_release

    text = world.find_module(fault.module).text
    return lazy_release.LazyRelease(
        place, {fault.module: text[: fault.start] + fault.after + text[fault.end :]}
    )


def _judge_narrowing(
    place: Path, world: Any, kernels: Any, fault: Fault, before: Thresholds, known: Any
) -> dict[str, Any]:
    from harness.runs.audit.kernel_reading import KernelReading, analyze_kernel, iterate_cases

    changed = _judge_fault(fault, place, world)
    reported = matters = unreported = is_analyzed = False
    reasons: set[str] = set()
    for kernel in _find_launched(kernels, fault):
        after = analyze_kernel(changed, kernel, known, before)
        is_analyzed |= bool(after.cases) and not after.reasons
        reasons |= after.reasons
        observed = [one for one in after.findings.values() if one.is_observed]
        reported |= bool(observed)
        matters |= any(one.confirmed == "confirmed" for one in observed)
        if matters or not any(_overflows_elsewhere(one, set(before)) for one in after.cases):
            continue
        # Does an integer overflow in a line without a finding in the unchanged release as well?
        as_it_is = KernelReading()
        list(iterate_cases(world, kernel, known, as_it_is))
        own = any(_overflows_elsewhere(one, set(before)) for one in as_it_is.cases)
        unreported |= own
        matters |= not own
    return _make_judgement(reported, matters, is_analyzed, reasons) | {"unreported": unreported}


def _make_judgement(
    reported: bool, matters: bool, is_analyzed: bool, reasons: set[str]
) -> dict[str, Any]:
    verdict = "reported" if reported else "missed" if matters else "cannot tell"
    if not reported and not matters and is_analyzed:
        verdict = "harmless"
    why = "" if verdict == "reported" else "; ".join(sorted(reasons)[:3])
    return {"verdict": verdict, "matters": matters, "why": why}


def _judge_size(
    place: Path, world: Any, kernels: Any, fault: Fault, before: Thresholds, known: Any
) -> dict[str, Any]:
    from harness.runs.audit import overrun_runs
    from harness.runs.audit.kernel_reading import KernelReading, iterate_cases

    changed = _judge_fault(fault, place, world)
    reported: set[Any] = set()
    matters: set[Any] = set()
    reasons: set[str] = set()
    for where, sign in ((changed, 1), (world, -1)):
        for kernel in _list_launching_kernels(where, kernels, fault):
            read = KernelReading()
            for case in iterate_cases(where, kernel, known, read):
                loaded = read.cases[-1][0]
                overruns = overrun_runs.find_overruns(loaded, case, kernel.module)
                found = {(kernel.name, one.text, one.element) for one in overruns}
                left_tensor, why = _goes_past(loaded, case)
                if sign > 0:
                    reasons |= why or (_explain_miss(case) if left_tensor and not found else set())
                reported = reported | found if sign > 0 else reported - found
                matters = matters | left_tensor if sign > 0 else matters - left_tensor
            if read.error and not read.cases:
                reasons.add(f"Triton does not take it: {read.error}")
    # Every reported overrun was observed in a run.
    return _make_judgement(bool(reported), bool(reported or matters), not reasons, reasons)


def _list_launching_kernels(world: Any, kernels: Any, fault: Fault) -> list[Any]:
    """Return the kernels of a fault, with this world's launches of them."""
    from dataclasses import replace

    from harness.runs.audit.launch_sites import find_launches

    named = {one.name: one for one in kernels}
    module = world.find_module(fault.module)
    here = list(find_launches(module, named.keys()))
    name = fault.kernel.rpartition(".")[2]
    own = [replace(named[kernel], launches=[one]) for kernel, one in here if one.function == name]
    if own:
        return own[:2]
    found = _find_launched(kernels, fault)
    changed = {one.name for one in found} & {kernel for kernel, _ in here}
    return [
        replace(one, launches=[each for kernel, each in here if kernel == one.name])
        if one.name in changed else one
        for one in found
    ]  # fmt: skip


def _explain_miss(case: Any) -> set[str]:
    """Explain why the audit has no finding for a case that leaves a tensor."""
    from harness.runs.audit.overrun_analysis import SizedCase
    from harness.runs.audit.overrun_runs import iterate_suspects

    if next(iterate_suspects(SizedCase(case)), None) is None:
        return {"no launch that it tries goes past, or the function's own tests forbid it"}
    return {"not with all as small as can be that the size does not speak of"}


def _goes_past(kernel: Any, case: Any) -> tuple[set[Any], set[str]]:
    """Launch with tensors of true size: the lines that leave one, or why none is launched."""
    from harness.checking import OutOfBounds
    from harness.runs.audit.overrun_analysis import SizedCase
    from harness.runs.audit.overrun_runs import run_sized_launch

    sized = SizedCase(case)
    if sized.unsettled_reason:
        return set(), {sized.unsettled_reason}
    models = {one.name: one.values for one in case.limits.models}
    shapes = [{}, models["gpt-oss-120b"], models["DeepSeek-V3"]]
    quantities = [one for one in case.limits.quantities.values() if one.size]
    found: set[Any] = set()
    for shape in shapes:
        for load in LOADS:
            loads = {one.name: load for one in quantities}
            at = sized.make_launch_values({**shape, **loads})
            error = run_sized_launch(kernel, sized, at, sized.sizes.keys(), None)
            if isinstance(error, OutOfBounds) and error.location is not None:
                found.add(error.location.text)
    return found, set()


def _find_launched(kernels: Any, fault: Fault) -> list[Any]:
    """Return the kernel of a fault, or for a helper the first two kernels that call it."""
    named: dict[str, list[Any]] = collections.defaultdict(list)
    for one in kernels:
        named[one.name].append(one)
    waiting = [one for one in named[fault.kernel] if one.module == fault.module]
    found: list[Any] = []
    callers: set[str] = set()
    while waiting and len(found) < 2:
        one = waiting.pop(0)
        if one.is_helper:
            for name in sorted(one.callers - callers):
                callers.add(name)
                waiting += named[name]
        else:
            found.append(one)
    return found


def _overflows_elsewhere(read: tuple[Any, Any], lines: set[tuple[str, int]]) -> bool:
    """Launch at the limits: does an integer overflow in a line other than these?"""
    from harness.runs.audit.overflow_runs import OverflowLauncher
    from harness.runs.audit.trial_launches import OVERFLOWS, iterate_draws

    kernel, case = read
    others = {(one.source.file, one.source.line) for one in case.graph.walk()} - lines
    return any(
        OverflowLauncher(kernel, case, one, others).run(case.make_largest_loads()) == OVERFLOWS
        for one in list(iterate_draws(case))[:LAUNCHES]
    )


def _read_thresholds(arguments: argparse.Namespace) -> Thresholds:
    """Read each finding's threshold, by the line in the release on this machine."""
    return {
        (str(arguments.place / "sglang" / one["file"].partition("/sglang/")[2]), one["line"]):
        one["threshold"]
        for one in read_record(arguments.audit)["findings"]
    }  # fmt: skip


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("audit", type=Path, help="a record of `unfix audit` of the release")
    parser.add_argument("--sizes", action="store_true", help="faults of sizes and bounds")
    parser.add_argument("--release", default="")
    parser.add_argument("--faults", type=int, default=320)
    parser.add_argument("-j", "--jobs", type=int, default=1)
    parser.add_argument("--place", type=Path, help="a folder that holds the package")
    parser.add_argument("--made", type=Path, help="faults that were made before")
    arguments = parser.parse_args()
    if arguments.made and arguments.made.exists():  # under the release's Python
        faults = [Fault(**one) for one in json.loads(arguments.made.read_text())]
        found = judge_faults(arguments.place, faults, _read_thresholds(arguments), arguments.jobs)
        sys.stdout.write("\n" + json.dumps(found))
        return
    from harness.releases import checkouts, managed_releases
    from harness.releases.managed_releases import CPU_BASE
    from harness.releases.source_trees import FolderSourceTree

    release = (
        managed_releases.get_release(arguments.release)
        if arguments.release
        else managed_releases.get_newest_release()
    )
    tree = release.open_sources()
    assert isinstance(tree, FolderSourceTree)
    start = time.monotonic()
    faults_file = (
        arguments.made or Path(os.environ.get("TMPDIR", "/tmp")) / f"faults-{os.getpid()}.json"
    )
    faults = draw_faults(tree.folder, arguments.faults, arguments.sizes)
    faults_file.write_text(json.dumps([asdict(one) for one in faults]))
    if arguments.made:
        return
    command = [CPU_BASE.python, "-m", "bench.narrowing", arguments.audit, "--made", faults_file]
    command += ["--place", tree.folder, "-j", arguments.jobs]
    environment = dict(os.environ)
    checkouts.set_checkout_variables(environment)
    result = subprocess.run(
        list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True, env=environment
    )
    found = json.loads(result.stdout.splitlines()[-1])
    summary = count_up(found) | {
        "release": release.name,
        "seconds": round(time.monotonic() - start),
    }
    print(json.dumps(summary, indent=1))
    limits = {"seconds": SECONDS, "launches": LAUNCHES}
    record_result({"limits": limits, **summary, "faults": found}, arguments.record, say=False)


def count_up(found: list[dict[str, Any]]) -> dict[str, Any]:
    verdicts = collections.Counter(one["verdict"] for one in found)
    matter = sum(one.get("matters", False) for one in found)
    caught = sum(one.get("matters", False) and one["verdict"] == "reported" for one in found)
    return {
        "verdicts": dict(verdicts),
        "matter": matter,
        "reported_of_these": caught,
        "unreported": sum(one.get("unreported", False) for one in found),
    }


if __name__ == "__main__":
    main()
