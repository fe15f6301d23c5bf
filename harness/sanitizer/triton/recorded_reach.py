"""A record of who launched each kernel under check, and of the source lines that ran.

The file is that of `recorded_launches`. Each process appends a line when it launches a kernel for
the first time, and again when a launch runs lines that none of its earlier ones ran. Lines are
those of the kernel's own package, and the release is the version of that. A merged file has one
line for each kernel and release. Example:

    {"kernel": "toy.a:k", "release": "1.0", "by": ["suite t.py"], "lines": {"toy/a.py": [9]}}

A kernel on a GPU reports no lines, nor does one of CUDA C++, which is named by its file:
`toy/csrc/rope.cuh:rotate_kernel`. Where a launch was refused, because the executor cannot follow
the kernel, the line has the reason under `refused` and no lines.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.core.errors import UnfixError
from harness.sanitizer import plugins

RECORD_VARIABLE = "UNFIX_LAUNCHES"
LAUNCHER_VARIABLE = "UNFIX_LAUNCHED_BY"  # names the launches of a process: "zoo llama"
REACHED_BY = "by"  # the key that only lines of this kind have
_PYTEST_VARIABLE = "PYTEST_CURRENT_TEST"
_UNNAMED = "command"
_seen_lines: dict[tuple[str, str], set[tuple[str, int]]] = {}


@dataclass(slots=True)
class KernelReach:
    """Who launched a kernel of a release, and which lines of which files ran meanwhile."""

    kernel: str  # module:name
    release: str
    by: set[str] = field(default_factory=set)
    lines: dict[str, set[int]] = field(default_factory=dict)  # by path from the package on
    refusals: set[str] = field(default_factory=set)  # why launches were refused

    def add(self, other: KernelReach) -> None:
        """Add what another record of the same kernel and release has."""
        self.by |= other.by
        self.refusals |= other.refusals
        for file, numbers in other.lines.items():
            self.lines.setdefault(file, set()).update(numbers)


def is_recording() -> bool:
    return bool(os.environ.get(RECORD_VARIABLE))


def open_record() -> Path | None:
    """Create the file if there is to be one, and name it by its whole path; return that."""
    if not is_recording():
        return None
    file = Path(os.environ[RECORD_VARIABLE]).absolute()
    file.touch()
    os.environ[RECORD_VARIABLE] = str(file)
    return file


def describe_launcher() -> str:
    """Describe who launches here: a name that the process was given, or the running test."""
    if name := os.environ.get(LAUNCHER_VARIABLE):
        return name
    test = os.environ.get(_PYTEST_VARIABLE, "").partition(" (")[0].partition("[")[0]
    return f"suite {test}" if test else _UNNAMED


def record_reach(kernel: Any, file_lines: Iterable[tuple[str, int]]) -> None:
    """Append a launch and its lines to the file, unless earlier launches had them all."""
    _record_reach(name_kernel(kernel), _get_package(kernel), file_lines)


def record_cuda_reach(file: str, name: str) -> None:
    """Append a launch of a CUDA C++ kernel that stands in a file of a plug-in's package."""
    for package in plugins.PACKAGES:
        if path := shorten_to_package(file, package):
            _record_reach(f"{path}:{name}", package, ())


def _record_reach(name: str, package: str, file_lines: Iterable[tuple[str, int]]) -> None:
    launcher = describe_launcher()
    is_first = (name, launcher) not in _seen_lines
    known_lines = _seen_lines.setdefault((name, launcher), set())
    lines = set(file_lines) - known_lines
    if not lines and not is_first:
        return
    known_lines |= lines
    by_file: dict[str, set[int]] = {}
    for file, line in lines:
        if path := shorten_to_package(file, package):
            by_file.setdefault(path, set()).add(line)
    _append_reach(KernelReach(name, _get_version(package), {launcher}, by_file))


def record_refusal(kernel: Any, reason: str) -> None:
    """Append that a launch was refused: nothing of the kernel has run."""
    version = _get_version(_get_package(kernel))
    _append_reach(KernelReach(name_kernel(kernel), version, refusals={reason}))


def name_kernel(kernel: Any) -> str:
    """Return a Triton kernel's name in all records: module:name."""
    return f"{kernel.fn.__module__}:{kernel.fn.__qualname__}"


def _get_package(kernel: Any) -> str:
    package: str = kernel.fn.__module__.partition(".")[0]
    return package


def _get_version(package: str) -> str:
    return str(getattr(sys.modules.get(package), "__version__", ""))


def _append_reach(reach: KernelReach) -> None:
    with open(os.environ[RECORD_VARIABLE], "a") as records:
        fcntl.flock(records, fcntl.LOCK_EX)
        records.write(render_reach(reach) + "\n")


def render_reach(reach: KernelReach) -> str:
    """Return the line of a file for a kernel."""
    lines = {file: sorted(reach.lines[file]) for file in sorted(reach.lines)}
    record: dict[str, Any] = {"kernel": reach.kernel, "release": reach.release}
    record |= {REACHED_BY: sorted(reach.by), "lines": lines}
    if reach.refusals:
        record["refused"] = sorted(reach.refusals)
    return json.dumps(record)


def shorten_to_package(file: str, package: str) -> str:
    """Return a file's path from the package on, or nothing for a file of another package."""
    parts = file.split("/")
    if package not in parts[:-1]:
        return ""
    return "/".join(parts[len(parts) - 1 - parts[::-1].index(package) :])


def read_reach(file: Path) -> list[KernelReach]:
    """Read the launches of a file, those of all processes with one kernel and release together."""
    reached: dict[tuple[str, str], KernelReach] = {}
    with explain_unreadable_record(file):
        for record in parse_records(file.read_text().splitlines(), of_reach=True):
            key = record["kernel"], record["release"]
            lines = {path: set(numbers) for path, numbers in record["lines"].items()}
            reach = KernelReach(
                *key, set(record[REACHED_BY]), lines, set(record.get("refused", ()))
            )
            reached.setdefault(key, KernelReach(*key)).add(reach)
    return list(reached.values())


def parse_records(lines: Iterable[str], of_reach: bool) -> Iterator[dict[str, Any]]:
    """Parse the lines of a file: those of reach, or those of launch modes."""
    records = map(json.loads, lines)
    return (record for record in records if (REACHED_BY in record) is of_reach)


@contextlib.contextmanager
def explain_unreadable_record(file: Path) -> Iterator[None]:
    """Raise what is wrong with the file in the user's words."""
    try:
        yield
    except OSError as error:
        raise UnfixError(f"there is no file of launches {file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UnfixError(f"{file} holds no launches: {RECORD_VARIABLE}={file} makes it") from error
