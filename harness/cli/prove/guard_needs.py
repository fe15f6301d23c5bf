"""What guards need beside a release, by the text of their files: a device, the CUDA toolkit.

A run brings both, so that a call without options proves all that this machine can.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
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
from harness.releases import cuda_toolkit, managed_releases
from harness.runs.kernels import cuda_builds
from harness.runs.prove import plan
from harness.sanitizer.plugins.for_sglang.recorded_builds import (
    RECORDED_BUILDS,
    read_recorded_builds,
)
from harness.workers.release_target import ReleaseTarget

_DEVICE_MARK = re.compile(r'^pytestmark = pytest\.mark\.runs_on\("(\w+)"\)$', re.MULTILINE)

_MODULE = re.compile(r"\w+(\.\w+)+")


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
        Path(w.partition("::")[0]) for i, w in enumerate(words) if plan.is_guard_path(words, i)
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


def bring_toolkit(
    files: dict[Path, str], toggles: Sequence[Toggle], targets: Sequence[ReleaseTarget], jobs: int
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
    states = ((on, find_toggle_status(t, on.sources).state) for t in in_cpp for on in targets)
    needing = {on.name: on for on, state in states if state.value in PRESENT_STATES}
    if not texts or not needing:
        return
    try:
        cuda_toolkit.ensure_toolkit(options.report_status)
    except NotReadyError as error:
        options.report_status(f"guards of CUDA kernels are n/a, as there is no toolkit: {error}")
        return
    modules = {name for text in texts for name in _find_prepared_modules(text)}
    for target in needing.values():
        _build_ahead(target, modules, jobs)


def _find_prepared_modules(text: str) -> Iterator[str]:
    """Find the modules that guards name for their preparation, or else their file for all tests."""
    tree = ast.parse(text)
    whole = [n for node in tree.body if isinstance(node, ast.Assign) for n in _list_modules(node)]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and "guards" in map(_get_mark, node.decorator_list):
            own = [name for mark in node.decorator_list for name in _list_modules(mark)]
            yield from own or whole


def _get_mark(decorator: ast.expr) -> str:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.attr if isinstance(called, ast.Attribute) else ""


def _list_modules(node: ast.AST) -> list[str]:
    texts = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
    return [text for text in texts if isinstance(text, str) and _MODULE.fullmatch(text)]


def _build_ahead(target: ReleaseTarget, modules: set[str], jobs: int) -> None:
    """Build modules on all cores, which a worker builds one after the other; it names failures."""
    release = managed_releases.find_named_release(target.name)
    builds = [
        build
        for build in read_recorded_builds(RECORDED_BUILDS)
        if build.module.removeprefix("sglang.kernels.ops.") in modules
    ]
    if release is None or not builds:
        return
    options.report_status(f"building {len(builds)} CUDA modules of SGLang {target.name}, once")
    with contextlib.suppress(NotReadyError):
        for _ in cuda_builds.build_modules(release, builds, jobs):
            pass
