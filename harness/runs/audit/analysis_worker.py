"""The analysis of a release's kernels, in a process that has Triton.

The request is a JSON object. Each answer is a line: a pickled `KernelAudit` in hexadecimal. One
process reads the release; forked lanes take kernels from a shared queue. Invariant: every kernel
of the request gets one answer. A kernel that takes too long, or makes Triton end its process,
ends a fork of its lane: the kernel is `cannot tell`, and the lane continues with a new fork.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from harness.core import preloading, processes
from harness.core.cache import get_or_compute, is_cached, save_cached
from harness.core.child_process import fork_process, fork_with_pipe
from harness.core.code_digest import compute_digest
from harness.core.pipes import PipeEnd
from harness.runs.audit import overflow_runs, overrun_runs, size_limits
from harness.runs.audit.findings import FindingKey, FindingKind, KernelAudit
from harness.runs.audit.kernel_discovery import SourceKernel
from harness.runs.audit.kernel_reading import (
    KernelReading,
    analyze_kernel,
    get_module,
    iterate_cases,
    judge_reading,
    make_helper_audit,
    make_unknown_audit,
    shorten_error,
)
from harness.runs.audit.kernel_targets import is_targeted
from harness.runs.audit.lazy_release import LazyRelease
from harness.runs.audit.release_kernels import CODE_DIGEST, ReleaseKernels, normalize_lines
from harness.runs.audit.size_limits import SizeLimits
from harness.runs.audit.threshold_search import find_overflow_findings
from harness.sanitizer.triton import frontend, recorded_launches

_KERNEL_SECONDS = 12  # CPU seconds for one kernel
_CACHE_KIND = "audits"
_NUMBER_BYTES = 4  # the size of a kernel's number in the queue
_answer_pipe = 1


def audit_kernel(release: LazyRelease, kernel: SourceKernel, limits: SizeLimits) -> KernelAudit:
    """Audit one kernel, or load its audit if neither its code nor the limits have changed."""
    key = _make_cache_key(release, kernel, limits)
    return get_or_compute(_CACHE_KIND, key, lambda: _audit_kernel(release, kernel, limits))


def _audit_kernel(release: LazyRelease, kernel: SourceKernel, limits: SizeLimits) -> KernelAudit:
    return judge_reading(release, kernel, analyze_kernel(release, kernel, limits))


def _make_cache_key(
    release: LazyRelease, kernel: SourceKernel, limits: SizeLimits, *more: str
) -> str:
    return compute_digest(
        frontend.compute_code_key(release.load_kernel(kernel.module, kernel.name)),
        limits.text,
        CODE_DIGEST,
        repr(kernel.launches),
        repr(kernel.recorded_launches),
        get_module(release, kernel).path,
        str(_KERNEL_SECONDS),
        *more,
    )


def main() -> None:
    sys.setrecursionlimit(20_000)
    warnings.simplefilter("ignore")
    global _answer_pipe
    processes.die_with_parent(os.getppid())
    request = json.load(sys.stdin)
    _answer_pipe = os.dup(1)  # Triton and its libraries print to 1, which becomes the log
    os.dup2(2, 1)
    limits = size_limits.read_limits(Path(request["limits"]))
    overflow_runs.load_launcher_state()
    gc.disable()  # syntax trees are a million small objects that all stay alive
    locations = zip(map(Path, request["locations"]), request["source_digests"], strict=True)
    kernels, earlier = _load_kernels(list(locations))
    modes = recorded_launches.read_launch_modes(Path(request["launches"]))
    for kernel in (*kernels.kernels, *(earlier.kernels if earlier else ())):
        kernel.recorded_launches = modes.get(f"{kernel.module}:{kernel.name}", ())
    targets = request["targets"]
    candidates = kernels.kernels if earlier is None else kernels.list_changed_since(earlier)
    chosen = [one for one in candidates if is_targeted(one.module, one.name, targets)]
    gc.freeze()
    gc.enable()
    preloading.raise_gc_thresholds()
    if len(chosen) > preloading.FORKS_TO_REPAY_COLLAPSE:
        preloading.collapse_into_huge_pages()
    targeted = sum(is_targeted(one.module, one.name, targets) for one in kernels.kernels)
    counts = {"kernels": len(chosen), "targeted": targeted}
    os.write(_answer_pipe, (json.dumps(counts) + "\n").encode())
    for kernel in chosen:
        if kernel.is_helper:
            _write_answer(make_helper_audit(kernels.release, kernel))
    chosen = [kernel for kernel in chosen if not kernel.is_helper]
    # The longest first, so that all lanes end at about the same time.
    chosen.sort(key=lambda kernel: kernel.node.lineno - (kernel.node.end_lineno or 0))
    queue = _make_queue(len(chosen))
    run_lane = partial(_run_lane, kernels.release, chosen, queue, limits, earlier)
    for lane in [fork_process(run_lane) for _ in range(request["jobs"])]:
        lane.reap()
    os._exit(0)  # an orderly exit would run what the release's statements have registered


def _load_kernels(
    locations: list[tuple[Path, str]],
) -> tuple[ReleaseKernels, ReleaseKernels | None]:
    """Load the kernels of a release and of the earlier one, which a fork reads in parallel."""
    if len(locations) == 1:
        return ReleaseKernels(*locations[0]), None
    # This process loads the fork's digests from the cache.
    reader = fork_process(lambda: ReleaseKernels(*locations[1]).compute_digests())
    kernels = ReleaseKernels(*locations[0])
    kernels.compute_digests()
    reader.reap()
    return kernels, ReleaseKernels(*locations[1])


def _make_queue(count: int) -> int:
    """Make a pipe of the numbers below `count`; a read of 4 bytes takes one of them."""
    read, write = os.pipe()
    os.write(write, b"".join(number.to_bytes(_NUMBER_BYTES) for number in range(count)))
    os.close(write)
    return read


def _run_lane(
    release: LazyRelease,
    kernels: list[SourceKernel],
    queue: int,
    limits: SizeLimits,
    earlier: ReleaseKernels | None,
) -> None:
    """Audit kernels of the queue in a fork; start a new fork when a kernel has ended one."""

    def audit_queue(pipe: PipeEnd) -> None:
        while number := os.read(queue, _NUMBER_BYTES):
            kernel = kernels[int.from_bytes(number)]
            pipe.send(b"%d" % int.from_bytes(number))
            signal.setitimer(signal.ITIMER_PROF, _KERNEL_SECONDS)
            audit = _audit_safely(release, kernel, limits)
            _write_answer(_drop_earlier_findings(audit, kernel, limits, earlier))

    code = 1
    while code:
        child, pipe = fork_with_pipe(audit_queue)
        started = list(pipe.iterate_lines())
        pipe.close()
        code = child.reap()
        if code and not started:
            return  # no kernel ended it: other lanes do the rest, or the count is short
        if code:
            kernel = kernels[int(started[-1])]
            is_slow = code == -signal.SIGPROF
            reason = "reading it ends the process"
            if is_slow:
                reason = f"it takes more than {_KERNEL_SECONDS} s"
            audit = make_unknown_audit(release, kernel, reason)
            if is_slow:  # the next audit would time out again
                save_cached(_CACHE_KIND, _make_cache_key(release, kernel, limits), audit)
            _write_answer(audit)


def _audit_safely(release: LazyRelease, kernel: SourceKernel, limits: SizeLimits) -> KernelAudit:
    try:
        return audit_kernel(release, kernel, limits)
    except Exception as error:  # arbitrary code may raise anything; the error is the reason
        return make_unknown_audit(release, kernel, shorten_error(error))


def _drop_earlier_findings(
    audit: KernelAudit, kernel: SourceKernel, limits: SizeLimits, earlier: ReleaseKernels | None
) -> KernelAudit:
    """Drop the findings that the kernel had in the earlier release."""
    if earlier is None or not audit.findings:
        return audit
    confirmed = {finding.key: False for finding in audit.findings}
    confirmed |= {finding.key: True for finding in audit.findings if finding.is_confirmed}
    known: set[FindingKey] = set()
    for one in earlier.find_by_name(kernel.name):
        # A kernel that takes longer ends the fork, and its new findings are lost.
        signal.setitimer(signal.ITIMER_PROF, 10 * _KERNEL_SECONDS)
        with contextlib.suppress(Exception):  # a kernel that Triton refuses had no findings
            unknown = {key: value for key, value in confirmed.items() if key not in known}
            known |= _find_earlier_keys(earlier.release, one, limits, unknown)
    return audit.drop_findings(known)


def _find_earlier_keys(
    release: LazyRelease,
    kernel: SourceKernel,
    limits: SizeLimits,
    confirmed_by_key: Mapping[FindingKey, bool],
) -> set[FindingKey]:
    """Find which of these findings the earlier kernel has; search it for no others."""
    lines = normalize_lines(release.render_kernel_source(kernel.module, kernel.name))
    present = {key: confirmed_by_key[key] for key in sorted(confirmed_by_key) if key[2] in lines}
    if not present:
        return set()
    if is_cached(_CACHE_KIND, _make_cache_key(release, kernel, limits)):
        audit = audit_kernel(release, kernel, limits)
        return {finding.key for finding in audit.findings} & present.keys()
    key = _make_cache_key(release, kernel, limits, repr(present))
    return get_or_compute(
        "earlier", key, lambda: _find_observed_keys(release, kernel, limits, present)
    )


def _find_observed_keys(
    release: LazyRelease,
    kernel: SourceKernel,
    limits: SizeLimits,
    confirmed_by_key: Mapping[FindingKey, bool],
) -> set[FindingKey]:
    """Read the earlier kernel mode by mode until each finding has been observed.

    A finding that no run confirmed in the later release counts here by arithmetic alone.
    """
    reading, missing = KernelReading(), set(confirmed_by_key)
    for case in iterate_cases(release, kernel, limits, reading):
        loaded, _ = reading.cases[-1]
        lines = {line for kind, _, line in missing if kind == FindingKind.OVERFLOWS}
        overflows, _ = find_overflow_findings(case, kernel.module, lines)
        missing -= {finding.key for finding, _ in overflows if not confirmed_by_key[finding.key]}
        missing -= overflow_runs.select_observed_findings(
            loaded, case, [each for each in overflows if each[0].key in missing]
        )
        if any(kind != FindingKind.OVERFLOWS for kind, _, _ in missing):
            overruns = overrun_runs.find_overruns(loaded, case, kernel.module)
            missing -= {finding.key for finding in overruns}
        if not missing:
            break
    return confirmed_by_key.keys() - missing


def _write_answer(audit: KernelAudit) -> None:
    os.write(_answer_pipe, (pickle.dumps(audit).hex() + "\n").encode())


if __name__ == "__main__":
    main()
