"""What guards need beside a release, by the text of their files: a device, the CUDA toolkit.

A run brings both, so that a call without options proves all that this machine can.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from harness.cli import options
from harness.core import paths
from harness.core.cpp_tokens import is_cpp_path
from harness.core.device import VIRTUAL
from harness.core.errors import NotReadyError
from harness.findings import finding_files
from harness.fixes.matching.toggle_status import find_toggle_status
from harness.fixes.registry.schema import Toggle
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.guards.proof_exceptions import PRESENT_STATES
from harness.releases import cuda_toolkit
from harness.runs.prove import plan
from harness.workers.release_target import ReleaseTarget

_DEVICE_MARK = re.compile(
    r'^pytestmark = (?:\[[^]]*?)?pytest\.mark\.runs_on\("(\w+)"\)', re.MULTILINE
)


def find_guard_places(toggles: Sequence[Toggle], catalogue: ToggleCatalogue) -> tuple[str, ...]:
    """Find the tests of proposed toggles, and the folder of the guards of others."""
    proposed = {toggle.id for toggle in toggles} & {*catalogue.proposed}
    others = ["suites"] if len(proposed) < len(toggles) else []
    if not proposed:
        return tuple(others)
    root, findings = paths.project_folder(), finding_files.load_findings()
    tests = [finding_files.get_test_file(f.name) for f in findings if f.fix.toggle in proposed]
    return (*others, *(str(test.relative_to(root)) for test in tests))


def find_guard_files(
    words: list[str], toggles: Sequence[Toggle], places: Sequence[str] = ("suites",)
) -> dict[Path, str]:
    """Find the files of a call that name one of these toggles, and read them."""
    named = [
        Path(w.partition("::")[0]).resolve()
        for i, w in enumerate(words)
        if plan.is_guard_path(words, i)
    ]
    files: list[Path] = []
    for path in named or [paths.project_folder() / place for place in places]:
        files += [path] if path.is_file() else sorted(path.rglob("test_*.py"))
    texts = {file: file.read_text(errors="replace") for file in files}
    ids = [f'"{toggle.id}"' for toggle in toggles]
    return {
        file: text
        for file, text in texts.items()
        if finding_files.is_test_file(file) or any(name in text for name in ids)
    }


def group_by_device(files: dict[Path, str]) -> dict[str, list[Path]]:
    """Group the files whose guards run on a device of their own by that device."""
    grouped = defaultdict(list)
    for file, text in files.items():
        if found := _DEVICE_MARK.search(text):
            grouped[found[1]].append(file)
        elif finding_files.is_test_file(file) and finding_files.launches_kernels(text):
            grouped[VIRTUAL].append(file)
    return dict(grouped)


def find_own_devices() -> dict[str, str]:
    """Find the files of suites whose guards run on a device of their own, and that device."""
    root = paths.project_folder()
    files = sorted((root / "suites").rglob("test_*.py"))
    grouped = group_by_device({file: file.read_text(errors="replace") for file in files})
    return {
        str(file.relative_to(root)): device for device, found in grouped.items() for file in found
    }


def bring_toolkit(
    files: dict[Path, str], toggles: Sequence[Toggle], targets: Sequence[ReleaseTarget]
) -> None:
    """Install the CUDA toolkit if a guard of the run builds kernels; go on without it offline."""
    if cuda_toolkit.find_toolkit() is not None:
        return
    in_cpp = [
        toggle
        for toggle in toggles
        if any(is_cpp_path(code.module) for variant in toggle.variants for code in variant.targets)
    ]
    names = [f'"{toggle.id}"' for toggle in in_cpp]
    texts = [
        text
        for file, text in files.items()
        if any(name in text for name in names)
        or (finding_files.is_test_file(file) and finding_files.needs_gpu(text))
    ]
    states = (find_toggle_status(t, on.sources).state for t in in_cpp for on in targets)
    if not texts or not any(state.value in PRESENT_STATES for state in states):
        return
    try:
        cuda_toolkit.ensure_toolkit(options.report_status)
    except NotReadyError as error:
        options.report_status(f"guards of CUDA kernels are n/a, as there is no toolkit: {error}")
