"""Checks in an installed release that a new toggle can be applied live."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.fixes.adopt.edit_porting import ResolvedEdits
from harness.fixes.adopt.release_timeline import EditTimeline
from harness.fixes.matching.toggle_status import ToggleState
from harness.patching.child_environment import ChildEnvironment
from harness.releases.managed_releases import Release

IMPORT_TIMEOUT = 120.0  # seconds; importing SGLang takes ten
CHECK_SCRIPT = """
import sys, warnings
warnings.simplefilter("ignore")
from harness import toggles
from harness.core.errors import UnfixError
for asked in sys.argv[1:]:
    verb, name = asked.split(":")
    try:
        with getattr(toggles, verb)(name):
            pass
        print(f"{name}: live")
    except UnfixError as error:
        print(f"{name}: at import alone: {error}")
"""


def check_toggles_live(
    timelines: Mapping[str, EditTimeline],
    releases: Sequence[Release],
    toggle_folders: Sequence[Path] = (),
) -> dict[str, str]:
    """Check each toggle on the newest installed release that has its code."""
    results = dict.fromkeys(timelines, "not tried: no release that has its code is installed")
    waiting = dict(timelines)
    for release in reversed([one for one in releases if one.is_installed]):
        release_cells = {
            name: cell
            for name, course in waiting.items()
            for cell in course.resolved_edits
            if str(cell.tree.version) == release.name
        }
        if release_cells:
            outcomes = _run_check(release, release_cells, toggle_folders)
            results |= {
                name: f"on SGLang {release.name}: {outcomes[name]}" for name in release_cells
            }
            waiting = {name: one for name, one in waiting.items() if name not in release_cells}
    return results


def _run_check(
    release: Release, cells: Mapping[str, ResolvedEdits], toggle_folders: Sequence[Path]
) -> dict[str, str]:
    words = [
        f"{'reverted' if cell.state is ToggleState.FIXED else 'enabled'}:{name}"
        for name, cell in cells.items()
    ]
    environment = ChildEnvironment()
    environment.use_checkout()
    environment.set_toggle_folders(toggle_folders)
    command = [str(release.python), "-c", CHECK_SCRIPT, *words]
    try:
        completed = subprocess.run(
            command, capture_output=True, text=True, timeout=IMPORT_TIMEOUT, env=environment
        )
    except subprocess.TimeoutExpired:
        timeout_problem = f"its modules did not import within {IMPORT_TIMEOUT:.0f} seconds"
        return dict.fromkeys(cells, timeout_problem)
    printed = dict(
        line.split(": ", 1)
        for line in completed.stdout.splitlines()
        if line.split(": ")[0] in cells
    )
    last_line = (completed.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    return {name: printed.get(name, last_line) for name in cells}
