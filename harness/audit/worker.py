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
from pathlib import Path

from harness import forking, processes
from harness.audit import arguments, confirming, limits, loading, past
from harness.audit.arguments import Parameter
from harness.audit.case import Case
from harness.audit.changed import Kernels, lines_of
from harness.audit.collecting import Kernel
from harness.audit.examining import examined
from harness.audit.findings import CONFIRMED, Audited, Finding, Key, Kind, Verdict, judged, sifted
from harness.audit.host import Launch
from harness.audit.limits import Limits
from harness.audit.reading import attempts, read
from harness.kernels import frontend, launched
from harness.kernels.kept import is_kept, keep, kept

_WAYS = 4  # of a kernel that was launched in more
_SECONDS = 12  # of the processor, for one kernel
_KIND = "audits"  # of what is kept
_WIDE = 4  # bytes of a kernel's number
_answers = 1
Line = tuple[str, int]  # a file's
_CODE = "".join(
    file.read_text()
    for file in sorted(Path(__file__).parent.glob("*.py"))
    if file.stem not in ("worker", "run", "exceptions", "changed", "again", "device")
)


def audited(world: loading.World, kernel: Kernel, known: Limits) -> Audited:
    """One kernel, from disk where nothing has changed."""
    return kept(_KIND, _key(world, kernel, known), lambda: _audited(world, kernel, known))


def _key(world: loading.World, kernel: Kernel, known: Limits, *more: str) -> str:
    module = world.module(kernel.module)
    assert module is not None
    words = [
        world.kernel(kernel.module, kernel.name).cache_key,
        known.text,
        _CODE,
        frontend._CODE,
        repr(kernel.launches),
        repr(kernel.ways),
        module.path,
        str(_SECONDS),
        *more,
    ]
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


@dataclass(slots=True)
class Read:
    """One kernel, in all the ways that its launches have it read."""

    findings: dict[Line, Finding] = field(default_factory=dict)
    overruns: dict[Line, Finding] = field(default_factory=dict)
    reasons: set[str] = field(default_factory=set)
    cases: list[tuple[object, Case]] = field(default_factory=list)
    error: str = ""  # Triton's
    as_launched: set[Line] = field(default_factory=set)  # what was told of a launch that was made

    @property
    def accesses(self) -> int:
        return max((len(case.reading.accesses) for _, case in self.cases), default=0)


def cases(world: loading.World, kernel: Kernel, known: Limits, found: Read) -> Iterator[Case]:
    """The kernel in each way that its launches have it read, and Triton takes it."""
    module = world.module(kernel.module)
    assert module is not None
    loaded = world.kernel(kernel.module, kernel.name)
    tried: list[list[Parameter]] = []
    launches: Sequence[Launch | None] = kernel.launches[:2] or (None,)
    for one in _launched(module, kernel, launches[0], known):
        try:
            case = Case(read(loaded, one), one, launches[0], known)
        except Exception as error:
            found.error = found.error or _short(error)
            continue
        found.cases.append((loaded, case))
        tried.append(one)
        yield case
    for launch in launches:
        for flags in (True, False):
            made = arguments.parameters(module, kernel.node, launch, known, flags)
            if made in tried:
                continue
            tried.append(made)
            for one in attempts(made):
                try:
                    case = Case(read(loaded, one), one, launch, known)
                except Exception as error:
                    found.error = found.error or _short(error)
                    continue
                found.cases.append((loaded, case))
                found.reasons |= arguments.unread(made)
                yield case
                break


def _launched(
    module: loading.Module, kernel: Kernel, launch: Launch | None, known: Limits
) -> Iterator[list[Parameter]]:
    """As it was launched somewhere; in all the words that the host has for the numbers."""
    made = arguments.parameters(module, kernel.node, launch, known, True)
    for way in kernel.ways[:_WAYS]:
        if (one := arguments.as_launched(made, way)) is not None:
            yield one


def read_in(
    world: loading.World, kernel: Kernel, known: Limits, before: Mapping[Line, int] | None = None
) -> Read:
    """`before`: loads from which on lines are known to wrap; only what wraps nearer is told."""
    found = Read()
    for case in cases(world, kernel, known, found):
        wraps, why = examined(case, kernel.module)
        found.reasons |= why
        new = [
            one
            for one in wraps
            if _nearer(one[0], found, case.is_as_launched)
            and one[0].threshold < (before or {}).get(one[0].at, one[0].threshold + 1)
        ]
        loaded, _ = found.cases[-1]
        for finding in confirming.confirmed(loaded, case, new):
            found.findings[finding.at] = finding
            if case.is_as_launched:
                found.as_launched.add(finding.at)
        for finding in past.found(loaded, case, kernel.module):
            found.overruns.setdefault(finding.at, finding)
    if not found.accesses and found.error:
        refused = "Triton does not take the arguments that are guessed"
        found.reasons.add(f"{refused}: {found.error}")
    return found


def _audited(world: loading.World, kernel: Kernel, known: Limits) -> Audited:
    found = read_in(world, kernel, known)
    seen, reasons = sifted([*found.findings.values(), *found.overruns.values()], found.reasons)
    verdict = judged(seen, reasons)
    module = world.module(kernel.module)
    assert module is not None
    return Audited(
        kernel.name, kernel.module, module.path, kernel.node.lineno, verdict, found.accesses, seen,
        reasons,
    )  # fmt: skip


def _nearer(finding: Finding, known: Read, as_launched: bool) -> bool:
    """Not known yet, or known for a larger load; or only of launches that did not come to it."""
    before = known.findings.get(finding.at)
    if before is None:
        return True
    if before.confirmed == CONFIRMED:
        return False
    guessed = not as_launched and finding.at in known.as_launched
    return guessed or finding.nearness < before.nearness


def _short(error: BaseException) -> str:
    """What Triton says at the very place, and not where that was called from."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:160]


def main() -> None:
    sys.setrecursionlimit(20_000)
    warnings.simplefilter("ignore")
    global _answers
    processes.die_with(os.getppid())
    asked = json.load(sys.stdin)
    # Triton and what it is made of print what they like: answers have a pipe of their own.
    _answers = os.dup(1)
    os.dup2(2, 1)
    known = limits.read(Path(asked["limits"]))
    confirming.make_ready()
    gc.disable()  # a million small things of syntax, all of which stay
    releases = zip(map(Path, asked["places"]), asked["sources"], strict=True)
    kernels, before = _kernels(list(releases))
    world = kernels.world
    ways = launched.read(Path(asked["launches"]))
    for one in (*kernels.all, *(before.all if before else ())):
        one.ways = ways.get(f"{one.module}:{one.name}", ())
    meant = sum(_is_meant(one, asked["targets"]) for one in kernels.all)
    among = kernels.all if before is None else kernels.changed_since(before)
    asked_for = [one for one in among if _is_meant(one, asked["targets"])]
    gc.freeze()
    gc.enable()
    forking.collect_seldom()
    if len(asked_for) > forking.MANY:
        forking.enlarge_pages()
    many = {"kernels": len(asked_for), "meant": meant}
    os.write(_answers, (json.dumps(many) + "\n").encode())
    for kernel in asked_for:
        if kernel.is_helper:
            _say(_helper(world, kernel))
    chosen = [one for one in asked_for if not one.is_helper]
    # The longest first, so that all lanes end at about the same time.
    chosen.sort(key=lambda one: one.node.lineno - (one.node.end_lineno or 0))
    queue = _queue(len(chosen))
    children = []
    own = os.getpid()
    for _ in range(asked["jobs"]):
        child = os.fork()
        if not child:
            processes.die_with(own)
            _lane(world, chosen, queue, known, before)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    os._exit(0)  # what a release's statements left behind is not worth an orderly end


def _kernels(releases: list[tuple[Path, str]]) -> tuple[Kernels, Kernels | None]:
    """Of a release, and of the earlier one, which another process reads meanwhile."""
    child = 0
    if len(releases) > 1:
        own, child = os.getpid(), os.fork()
        if not child:
            processes.die_with(own)
            Kernels(*releases[1]).digests  # noqa: B018 - kept on disk
            os._exit(0)
    kernels = Kernels(*releases[0])
    if not child:
        return kernels, None
    kernels.digests  # noqa: B018
    os.waitpid(child, 0)
    return kernels, Kernels(*releases[1])


def _is_meant(kernel: Kernel, targets: Sequence[str]) -> bool:
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


def _queue(count: int) -> int:
    """Numbers, each read by one lane alone."""
    read, write = os.pipe()
    os.write(write, b"".join(number.to_bytes(_WIDE) for number in range(count)))
    os.close(write)
    return read


def _lane(
    world: loading.World, kernels: list[Kernel], queue: int, known: Limits, before: Kernels | None
) -> None:
    """What nobody has begun, in turn; a fork that Triton ends is followed by another one."""
    status = 1
    while status:
        heard, says = os.pipe()
        own, child = os.getpid(), os.fork()
        if not child:
            processes.die_with(own)
            while number := os.read(queue, _WIDE):
                os.write(says, number)
                kernel = kernels[int.from_bytes(number)]
                signal.setitimer(signal.ITIMER_PROF, _SECONDS)
                found = _safely(world, kernel, known)
                _say(_new_in(found, kernel, known, before))
            os._exit(0)
        os.close(says)
        begun = b""
        while chunk := os.read(heard, 4096):
            begun = (begun + chunk)[-_WIDE:]
        os.close(heard)
        _, status = os.waitpid(child, 0)
        if status and not begun:
            return  # no kernel ended it: what is left is for other lanes, or missed when counted
        if status:
            kernel = kernels[int.from_bytes(begun)]
            slow = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF
            why = f"it takes more than {_SECONDS} s" if slow else "reading it ends the process"
            told = _untold(world, kernel, why)
            if slow:  # as it would be again
                keep(_KIND, _key(world, kernel, known), told)
            _say(told)


def _safely(world: loading.World, kernel: Kernel, known: Limits) -> Audited:
    try:
        return audited(world, kernel, known)
    except Exception as error:
        return _untold(world, kernel, _short(error))


def _new_in(found: Audited, kernel: Kernel, known: Limits, before: Kernels | None) -> Audited:
    """Less what was found in the kernel as it was before."""
    if before is None or not found.findings:
        return found
    left = {one.key: False for one in found.findings}
    left |= {one.key: True for one in found.findings if one.is_confirmed}
    had: set[Key] = set()
    for one in before.named(kernel.name):
        signal.setitimer(signal.ITIMER_PROF, 10 * _SECONDS)  # ended here, what is new is lost
        with contextlib.suppress(Exception):  # nothing was found in it that Triton does not take
            had |= _had(before.world, one, known, {key: left[key] for key in left.keys() - had})
    return found.without(had)


def _had(world: loading.World, kernel: Kernel, known: Limits, keys: Mapping[Key, bool]) -> set[Key]:
    """Which of these findings the kernel has, and nothing else of it; by whether they were run."""
    lines = lines_of(world.text(kernel.module, kernel.name))
    asked = {key: keys[key] for key in sorted(keys) if key[2] in lines}
    if not asked:
        return set()
    key = _key(world, kernel, known)
    if is_kept(_KIND, key):
        return {one.key for one in audited(world, kernel, known).findings} & asked.keys()
    made = _key(world, kernel, known, repr(asked))
    return kept("had", made, lambda: _seen_of(world, kernel, known, asked))


def _seen_of(
    world: loading.World, kernel: Kernel, known: Limits, asked: Mapping[Key, bool]
) -> set[Key]:
    """Read in one way after the other, until each of them was seen.

    What was too slow to run in the later release is here by arithmetic, as it is there.
    """
    read, left = Read(), set(asked)
    for case in cases(world, kernel, known, read):
        loaded, _ = read.cases[-1]
        wraps, _ = examined(
            case, kernel.module, {line for kind, _, line in left if kind == Kind.WRAPS}
        )
        left -= {one.key for one, _ in wraps if not asked[one.key]}
        left -= confirming.seen(loaded, case, [one for one in wraps if one[0].key in left])
        if any(kind != Kind.WRAPS for kind, _, _ in left):
            left -= {one.key for one in past.found(loaded, case, kernel.module)}
        if not left:
            break
    return asked.keys() - left


def _untold(world: loading.World, kernel: Kernel, reason: str) -> Audited:
    module = world.module(kernel.module)
    path = module.path if module is not None else ""
    return Audited(
        kernel.name, kernel.module, path, kernel.node.lineno, Verdict.UNTOLD, 0, (), (reason,)
    )


def _helper(world: loading.World, kernel: Kernel) -> Audited:
    module = world.module(kernel.module)
    assert module is not None
    return Audited(
        kernel.name, kernel.module, module.path, kernel.node.lineno, Verdict.SAFE, 0,
        helper_of=",".join(sorted(kernel.callers)), last=kernel.node.end_lineno or 0,
    )  # fmt: skip


def _say(one: Audited) -> None:
    line = pickle.dumps(one).hex() + "\n"
    os.write(_answers, line.encode())


if __name__ == "__main__":
    main()
