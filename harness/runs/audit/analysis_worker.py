"""The static part, where Triton is: a release's place in, one kernel's verdict a line out.

One process reads the release; forks of it take the kernels in turn, so a kernel that ends Triton
ends a fork, and the others go on.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from harness.core import preloading, processes
from harness.core.cache import get_or_compute, is_cached, save_cached
from harness.core.child_process import fork, fork_with_pipe
from harness.core.code_digest import digest_code
from harness.core.pipes import PipeEnd
from harness.kernels.triton import recorded_launches
from harness.runs.audit import (
    lazy_release,
    overflow_runs,
    overrun_runs,
    parameter_inference,
    size_limits,
)
from harness.runs.audit.findings import (
    CONFIRMED,
    AuditFinding,
    FindingKey,
    FindingKind,
    KernelAudit,
    KernelVerdict,
    judge_kernel,
    split_findings,
)
from harness.runs.audit.host_scope import HostLaunch
from harness.runs.audit.kernel_case import KernelCase
from harness.runs.audit.kernel_discovery import SourceKernel
from harness.runs.audit.kernel_graphs import iterate_guesses, read_graph
from harness.runs.audit.parameter_inference import AssumedParameter
from harness.runs.audit.release_kernels import ReleaseKernels, normalize_lines
from harness.runs.audit.size_limits import SizeLimits
from harness.runs.audit.threshold_search import find_overflow_findings

_MAX_RECORDED_LAUNCHES = 4  # of a kernel that was launched in more
_KERNEL_SECONDS = 12  # of the processor, for one kernel
_CACHE_KIND = "audits"  # of what is kept
_NUMBER_BYTES = 4  # bytes of a kernel's number
_answer_pipe = 1
SourceLineKey = tuple[str, int]  # a file's
CODE_DIGEST = digest_code("runs")


def audit_kernel(
    release: lazy_release.LazyRelease, kernel: SourceKernel, limits: SizeLimits
) -> KernelAudit:
    """One kernel, from disk where nothing has changed."""
    return get_or_compute(
        _CACHE_KIND,
        _make_cache_key(release, kernel, limits),
        lambda: _audit_kernel(release, kernel, limits),
    )


def _make_cache_key(
    release: lazy_release.LazyRelease, kernel: SourceKernel, limits: SizeLimits, *more: str
) -> str:
    module = release.find_module(kernel.module)
    assert module is not None
    words = [
        release.load_kernel(kernel.module, kernel.name).cache_key,
        limits.text,
        CODE_DIGEST,
        repr(kernel.launches),
        repr(kernel.recorded_launches),
        module.path,
        str(_KERNEL_SECONDS),
        *more,
    ]
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


@dataclass(slots=True)
class KernelReading:
    """One kernel, in all the ways that its launches have it read."""

    findings: dict[SourceLineKey, AuditFinding] = field(default_factory=dict)
    overruns: dict[SourceLineKey, AuditFinding] = field(default_factory=dict)
    reasons: set[str] = field(default_factory=set)
    cases: list[tuple[object, KernelCase]] = field(default_factory=list)
    error: str = ""  # Triton's
    recorded_lines: set[SourceLineKey] = field(
        default_factory=set
    )  # what was told of a launch that was made

    @property
    def accesses(self) -> int:
        return max((len(case.access_graph.accesses) for _, case in self.cases), default=0)


def iterate_cases(
    release: lazy_release.LazyRelease,
    kernel: SourceKernel,
    limits: SizeLimits,
    reading: KernelReading,
) -> Iterator[KernelCase]:
    """The kernel in each way that its launches have it read, and Triton takes it."""
    module = release.find_module(kernel.module)
    assert module is not None
    loaded = release.load_kernel(kernel.module, kernel.name)
    tried: list[list[AssumedParameter]] = []
    launches: Sequence[HostLaunch | None] = kernel.launches[:2] or (None,)
    for one in _iterate_recorded_parameters(module, kernel, launches[0], limits):
        try:
            case = KernelCase(read_graph(loaded, one), one, launches[0], limits)
        except Exception as error:
            reading.error = reading.error or _shorten_error(error)
            continue
        reading.cases.append((loaded, case))
        tried.append(one)
        yield case
    for launch in launches:
        for flags in (True, False):
            made = parameter_inference.infer_parameters(module, kernel.node, launch, limits, flags)
            if made in tried:
                continue
            tried.append(made)
            for one in iterate_guesses(made):
                try:
                    case = KernelCase(read_graph(loaded, one), one, launch, limits)
                except Exception as error:
                    reading.error = reading.error or _shorten_error(error)
                    continue
                reading.cases.append((loaded, case))
                reading.reasons |= parameter_inference.describe_unread_constants(made)
                yield case
                break


def _iterate_recorded_parameters(
    module: lazy_release.LazyModule,
    kernel: SourceKernel,
    launch: HostLaunch | None,
    limits: SizeLimits,
) -> Iterator[list[AssumedParameter]]:
    """As it was launched somewhere; in all the words that the host has for the numbers."""
    made = parameter_inference.infer_parameters(module, kernel.node, launch, limits, True)
    for way in kernel.recorded_launches[:_MAX_RECORDED_LAUNCHES]:
        if (one := parameter_inference.apply_recorded_launch(made, way)) is not None:
            yield one


def analyze_kernel(
    release: lazy_release.LazyRelease,
    kernel: SourceKernel,
    limits: SizeLimits,
    known_thresholds: Mapping[SourceLineKey, int] | None = None,
) -> KernelReading:
    """`before`: loads from which on lines are known to wrap; only what wraps nearer is told."""
    found = KernelReading()
    for case in iterate_cases(release, kernel, limits, found):
        wraps, why = find_overflow_findings(case, kernel.module)
        found.reasons |= why
        new = [
            one
            for one in wraps
            if _is_nearer(one[0], found, case.is_recorded_launch)
            and one[0].threshold
            < (known_thresholds or {}).get(one[0].line_key, one[0].threshold + 1)
        ]
        loaded, _ = found.cases[-1]
        for finding in overflow_runs.confirm_findings(loaded, case, new):
            found.findings[finding.line_key] = finding
            if case.is_recorded_launch:
                found.recorded_lines.add(finding.line_key)
        for finding in overrun_runs.find_overruns(loaded, case, kernel.module):
            found.overruns.setdefault(finding.line_key, finding)
    if not found.accesses and found.error:
        refused = "Triton does not take the arguments that are guessed"
        found.reasons.add(f"{refused}: {found.error}")
    return found


def _audit_kernel(
    release: lazy_release.LazyRelease, kernel: SourceKernel, limits: SizeLimits
) -> KernelAudit:
    found = analyze_kernel(release, kernel, limits)
    seen, reasons = split_findings(
        [*found.findings.values(), *found.overruns.values()], found.reasons
    )
    verdict = judge_kernel(seen, reasons)
    module = release.find_module(kernel.module)
    assert module is not None
    return KernelAudit(
        kernel.name, kernel.module, module.path, kernel.node.lineno, verdict, found.accesses, seen,
        reasons,
    )  # fmt: skip


def _is_nearer(finding: AuditFinding, reading: KernelReading, as_launched: bool) -> bool:
    """Not known yet, or known for a larger load; or only of launches that did not come to it."""
    before = reading.findings.get(finding.line_key)
    if before is None:
        return True
    if before.confirmed == CONFIRMED:
        return False
    guessed = not as_launched and finding.line_key in reading.recorded_lines
    return guessed or finding.nearness < before.nearness


def _shorten_error(error: BaseException) -> str:
    """What Triton says at the very place, and not where that was called from."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:160]


def main() -> None:
    sys.setrecursionlimit(20_000)
    warnings.simplefilter("ignore")
    global _answer_pipe
    processes.die_with_parent(os.getppid())
    asked = json.load(sys.stdin)
    # Triton and what it is made of print what they like: answers have a pipe of their own.
    _answer_pipe = os.dup(1)
    os.dup2(2, 1)
    known = size_limits.read_limits(Path(asked["limits"]))
    overflow_runs.load_process_state()
    gc.disable()  # a million small things of syntax, all of which stay
    releases = zip(map(Path, asked["places"]), asked["sources"], strict=True)
    kernels, before = _load_kernels(list(releases))
    world = kernels.release
    ways = recorded_launches.read_launch_modes(Path(asked["launches"]))
    for one in (*kernels.kernels, *(before.kernels if before else ())):
        one.recorded_launches = ways.get(f"{one.module}:{one.name}", ())
    meant = sum(_is_targeted(one, asked["targets"]) for one in kernels.kernels)
    among = kernels.kernels if before is None else kernels.list_changed_since(before)
    asked_for = [one for one in among if _is_targeted(one, asked["targets"])]
    gc.freeze()
    gc.enable()
    preloading.raise_gc_thresholds()
    if len(asked_for) > preloading.FORKS_TO_REPAY_COLLAPSE:
        preloading.collapse_into_huge_pages()
    many = {"kernels": len(asked_for), "meant": meant}
    os.write(_answer_pipe, (json.dumps(many) + "\n").encode())
    for kernel in asked_for:
        if kernel.is_helper:
            _write_answer(_make_helper_audit(world, kernel))
    chosen = [one for one in asked_for if not one.is_helper]
    # The longest first, so that all lanes end at about the same time.
    chosen.sort(key=lambda one: one.node.lineno - (one.node.end_lineno or 0))
    queue = _make_queue(len(chosen))
    lane = partial(_run_lane, world, chosen, queue, known, before)
    for child in [fork(lane) for _ in range(asked["jobs"])]:
        child.reap()
    os._exit(0)  # what a release's statements left behind is not worth an orderly end


def _load_kernels(releases: list[tuple[Path, str]]) -> tuple[ReleaseKernels, ReleaseKernels | None]:
    """Of a release, and of the earlier one, which another process reads meanwhile."""
    if len(releases) == 1:
        return ReleaseKernels(*releases[0]), None
    reader = fork(lambda: ReleaseKernels(*releases[1]).digests)  # which the disk cache keeps
    kernels = ReleaseKernels(*releases[0])
    kernels.digests  # noqa: B018
    reader.reap()
    return kernels, ReleaseKernels(*releases[1])


def _is_targeted(kernel: SourceKernel, targets: Sequence[str]) -> bool:
    """By a kernel's name, its module, a folder on the way, or its file."""
    path = kernel.module.replace(".", "/")
    return not targets or any(
        target == kernel.name
        or kernel.module == target
        or kernel.module.startswith(f"{target}.")
        or target in kernel.module.split(".")
        or target.removesuffix(".py").endswith(path)
        or target == f"{kernel.module}:{kernel.name}"
        for target in targets
    )


def _make_queue(count: int) -> int:
    """Numbers, each read by one lane alone."""
    read, write = os.pipe()
    os.write(write, b"".join(number.to_bytes(_NUMBER_BYTES) for number in range(count)))
    os.close(write)
    return read


def _run_lane(
    release: lazy_release.LazyRelease,
    kernels: list[SourceKernel],
    queue: int,
    limits: SizeLimits,
    earlier_kernels: ReleaseKernels | None,
) -> None:
    """Audit the kernels of the queue; a fork that Triton kills is replaced by another one."""

    def audit_queue(pipe: PipeEnd) -> None:
        while number := os.read(queue, _NUMBER_BYTES):
            kernel = kernels[int.from_bytes(number)]
            pipe.send(b"%d" % int.from_bytes(number))
            signal.setitimer(signal.ITIMER_PROF, _KERNEL_SECONDS)
            audit = _audit_safely(release, kernel, limits)
            _write_answer(_drop_earlier_findings(audit, kernel, limits, earlier_kernels))

    code = 1
    while code:
        child, pipe = fork_with_pipe(audit_queue)
        started = list(pipe.iterate_lines())
        pipe.close()
        code = child.reap()
        if code and not started:
            return  # no kernel killed it: other lanes take the rest, or the count shows it missing
        if code:
            kernel = kernels[int(started[-1])]
            slow = code == -signal.SIGPROF
            why = (
                f"it takes more than {_KERNEL_SECONDS} s" if slow else "reading it ends the process"
            )
            told = _make_unknown_audit(release, kernel, why)
            if slow:  # as it would be again
                save_cached(_CACHE_KIND, _make_cache_key(release, kernel, limits), told)
            _write_answer(told)


def _audit_safely(
    release: lazy_release.LazyRelease, kernel: SourceKernel, limits: SizeLimits
) -> KernelAudit:
    try:
        return audit_kernel(release, kernel, limits)
    except Exception as error:
        return _make_unknown_audit(release, kernel, _shorten_error(error))


def _drop_earlier_findings(
    kernel_audit: KernelAudit,
    kernel: SourceKernel,
    limits: SizeLimits,
    earlier_kernels: ReleaseKernels | None,
) -> KernelAudit:
    """Less what was found in the kernel as it was before."""
    if earlier_kernels is None or not kernel_audit.findings:
        return kernel_audit
    left = {one.key: False for one in kernel_audit.findings}
    left |= {one.key: True for one in kernel_audit.findings if one.is_confirmed}
    had: set[FindingKey] = set()
    for one in earlier_kernels.find_by_name(kernel.name):
        signal.setitimer(
            signal.ITIMER_PROF, 10 * _KERNEL_SECONDS
        )  # ended here, what is new is lost
        with contextlib.suppress(Exception):  # nothing was found in it that Triton does not take
            had |= _find_earlier_keys(
                earlier_kernels.release, one, limits, {key: left[key] for key in left.keys() - had}
            )
    return kernel_audit.drop_findings(had)


def _find_earlier_keys(
    release: lazy_release.LazyRelease,
    kernel: SourceKernel,
    limits: SizeLimits,
    confirmed_by_key: Mapping[FindingKey, bool],
) -> set[FindingKey]:
    """Which of these findings the kernel has, and nothing else of it; by whether they were run."""
    lines = normalize_lines(release.render_kernel_source(kernel.module, kernel.name))
    asked = {key: confirmed_by_key[key] for key in sorted(confirmed_by_key) if key[2] in lines}
    if not asked:
        return set()
    key = _make_cache_key(release, kernel, limits)
    if is_cached(_CACHE_KIND, key):
        return {one.key for one in audit_kernel(release, kernel, limits).findings} & asked.keys()
    made = _make_cache_key(release, kernel, limits, repr(asked))
    return get_or_compute("had", made, lambda: _find_observed_keys(release, kernel, limits, asked))


def _find_observed_keys(
    release: lazy_release.LazyRelease,
    kernel: SourceKernel,
    limits: SizeLimits,
    confirmed_by_key: Mapping[FindingKey, bool],
) -> set[FindingKey]:
    """Read in one way after the other, until each of them was seen.

    What was too slow to run in the later release is here by arithmetic, as it is there.
    """
    read, left = KernelReading(), set(confirmed_by_key)
    for case in iterate_cases(release, kernel, limits, read):
        loaded, _ = read.cases[-1]
        wraps, _ = find_overflow_findings(
            case, kernel.module, {line for kind, _, line in left if kind == FindingKind.OVERFLOWS}
        )
        left -= {one.key for one, _ in wraps if not confirmed_by_key[one.key]}
        left -= overflow_runs.select_observed_findings(
            loaded, case, [one for one in wraps if one[0].key in left]
        )
        if any(kind != FindingKind.OVERFLOWS for kind, _, _ in left):
            left -= {one.key for one in overrun_runs.find_overruns(loaded, case, kernel.module)}
        if not left:
            break
    return confirmed_by_key.keys() - left


def _make_unknown_audit(
    release: lazy_release.LazyRelease, kernel: SourceKernel, reason: str
) -> KernelAudit:
    module = release.find_module(kernel.module)
    path = module.path if module is not None else ""
    return KernelAudit(
        kernel.name,
        kernel.module,
        path,
        kernel.node.lineno,
        KernelVerdict.UNKNOWN,
        0,
        (),
        (reason,),
    )


def _make_helper_audit(release: lazy_release.LazyRelease, kernel: SourceKernel) -> KernelAudit:
    module = release.find_module(kernel.module)
    assert module is not None
    return KernelAudit(
        kernel.name, kernel.module, module.path, kernel.node.lineno, KernelVerdict.SAFE, 0,
        helper_of=",".join(sorted(kernel.callers)), last=kernel.node.end_lineno or 0,
    )  # fmt: skip


def _write_answer(kernel_audit: KernelAudit) -> None:
    line = pickle.dumps(kernel_audit).hex() + "\n"
    os.write(_answer_pipe, line.encode())


if __name__ == "__main__":
    main()
