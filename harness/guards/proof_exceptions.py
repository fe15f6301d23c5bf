"""Proof exceptions: toggles that a release has and that no guard proves there, with the reason.

`suites/proof_exceptions.yaml` lists them, and every run of a guard of `suites` checks the list both
ways: a guard that does not apply where the release has its toggle is broken unless an entry expects
it, and an entry is a problem where the guard applies after all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from harness.core import paths
from harness.core.device import VIRTUAL
from harness.core.outcomes import Verdict
from harness.core.yaml_document import YamlDocument, suggest_nearest
from harness.fixes.registry.schema import DeviceKind, Text, Toggle
from harness.releases import cuda_toolkit
from harness.store.prove.values import CellResult

FILE_NAME = "proof_exceptions.yaml"
PRESENT_STATES = ("fixed", "buggy")  # the states in which a release has a toggle


class _ExceptionEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the file; what it leaves out is all of it."""

    toggles: Annotated[tuple[Text, ...], Meta(min_length=1)]
    reason: Annotated[str, Meta(pattern=r"\S+\s+\S+\s+\S+")]  # three words at least
    guard: Text | None = None  # the end of a guard's id
    releases: Text = ""
    devices: tuple[DeviceKind, ...] = tuple(DeviceKind)
    without: Literal["", "cuda-toolkit", "virtual-gpu"] = ""


class _ExceptionFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    exceptions: tuple[_ExceptionEntry, ...]


@dataclass(frozen=True)
class ProofException:
    """A toggle that this guard, or no guard, proves on some releases and devices."""

    toggle: str
    guard: str | None
    reason: str
    releases: SpecifierSet
    devices: frozenset[str]
    place: str  # file and line
    without: str = ""  # the entry is about runs without it

    def applies_to(self, version: Version | None, device: str) -> bool:
        """Return whether it is about a release; one without a version has the entries of all."""
        kind = DeviceKind.CUDA.value if device == VIRTUAL else device
        if self.without == "virtual-gpu" and device == VIRTUAL:
            return False
        if self.without == "cuda-toolkit" and cuda_toolkit.find_toolkit() is not None:
            return False
        return kind in self.devices and (version is None or self.releases.contains(version))

    def describe(self) -> str:
        """Describe it: 'on cpu, releases <0.5.11, by test_engine.py::test_x: the reason'."""
        is_everywhere = len(self.devices) == len(DeviceKind)
        words = "on any device" if is_everywhere else f"on {', '.join(sorted(self.devices))}"
        words += f", releases {self.releases}" if str(self.releases) else ""
        words += f", without a {self.without}" if self.without else ""
        words += f", by {self.guard}" if self.guard else ""
        return f"{words}: {self.reason}"

    def covers(self, toggle: str, guard: str) -> bool:
        """Return whether it is about a guard: the end of an id begins at a folder, file or name."""
        own = self.guard
        is_end = own is None or guard == own or guard.endswith((f"/{own}", f"::{own}"))
        return self.toggle == toggle and is_end


def load_project_exceptions(toggles: Iterable[Toggle]) -> tuple[ProofException, ...]:
    path = paths.project_folder() / "suites" / FILE_NAME
    return load_exceptions(path, [toggle.id for toggle in toggles])


def load_exceptions(path: Path, known_toggles: Collection[str]) -> tuple[ProofException, ...]:
    document = YamlDocument(path)
    found: list[ProofException] = []
    for number, entry in enumerate(document.convert_to(_ExceptionFile).exceptions):
        try:
            releases = SpecifierSet(entry.releases, prereleases=True)
        except InvalidSpecifier as error:
            raise document.make_error_at(str(error), "exceptions", number, "releases") from error
        devices = frozenset(device.value for device in entry.devices)
        reason = " ".join(entry.reason.split())
        for toggle in entry.toggles:
            if toggle not in known_toggles:
                problem = f"no toggle is called {toggle}{suggest_nearest(toggle, known_toggles)}"
                raise document.make_error_at(problem, "exceptions", number, "toggles")
            place = f"{path.name}:{document.find_line('exceptions', number)}"
            found.append(
                ProofException(toggle, entry.guard, reason, releases, devices, place, entry.without)
            )
    return tuple(found)


def is_suite_guard(path: Path) -> bool:
    """Return whether the list is about the guards of a file or folder."""
    folders = (paths.project_folder() / name for name in ("suites", "findings"))
    return any(map(path.resolve().is_relative_to, folders))


def find_exception(
    exceptions: Iterable[ProofException], toggle: str, guard: str = ""
) -> ProofException | None:
    return next((each for each in exceptions if each.covers(toggle, guard)), None)


def explain_not_applicable(cell: CellResult, exceptions: Iterable[ProofException]) -> None:
    """Add the list's reason to a cell that does not apply; without one the cell is broken."""
    if cell.verdict is not Verdict.NA or cell.state not in PRESENT_STATES:
        return
    expected = find_exception(exceptions, cell.toggle, cell.guard)
    if expected is not None:
        cell.why = f"{cell.why}; expected: {expected.reason}"
        return
    cell.verdict = Verdict.BROKEN
    cell.why = (
        f"n/a, although the release has the toggle ({cell.state}): {cell.why}. Mend the guard, or "
        f"list the toggle with the reason in suites/{FILE_NAME}"
    )


def find_needless_exceptions(
    cells: Iterable[CellResult], exceptions: Iterable[ProofException], version: Version | None
) -> list[str]:
    """Return a problem for each entry that a cell contradicts: its guard applies.

    Whether a release without a version is in an entry's range is not known, so such entries are
    left out.
    """
    checkable = [each for each in exceptions if version is not None or not str(each.releases)]
    problems = {}
    for cell in cells:
        if cell.verdict and cell.verdict.is_good and cell.verdict is not Verdict.NA:
            entry = find_exception(checkable, cell.toggle, cell.guard)
            if entry is not None:
                guard = f"{entry.guard} does not prove" if entry.guard else "no guard proves"
                problems[entry] = (
                    f"{entry.place} says that {guard} {entry.toggle} here, and {cell.guard} is "
                    f"{cell.verdict.value}: remove the entry, or narrow its releases"
                )
    return list(problems.values())
