"""A toggle tried in a real release: whether it can be put in live, and if not, why."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from harness.adopt.course import Course
from harness.adopt.following import Known
from harness.matching.states import State
from harness.releases import engines
from harness.releases.managed import Release

LONGEST = 120.0  # seconds; importing SGLang takes ten
CODE = """
import sys, warnings
warnings.simplefilter("ignore")
from harness import toggles
from harness.errors import UnfixError
for asked in sys.argv[1:]:
    verb, name = asked.split(":")
    try:
        with getattr(toggles, verb)(name):
            pass
        print(f"{name}: live")
    except UnfixError as error:
        print(f"{name}: at import alone: {error}")
"""


def live(courses: Mapping[str, Course], releases: Sequence[Release]) -> dict[str, str]:
    """What comes of each toggle on the newest installed release that has its code, in words."""
    said = dict.fromkeys(courses, "not tried: no release that has its code is installed")
    waiting = dict(courses)
    for release in reversed([one for one in releases if one.installed]):
        here = {
            name: cell
            for name, course in waiting.items()
            for cell in course.held
            if str(cell.tree.version) == release.name
        }
        if here:
            told = _asked(release, here)
            said |= {name: f"on SGLang {release.name}: {told[name]}" for name in here}
            waiting = {name: one for name, one in waiting.items() if name not in here}
    return said


def _asked(release: Release, cells: Mapping[str, Known]) -> dict[str, str]:
    words = [
        f"{'reverted' if cell.state is State.FIXED else 'enabled'}:{name}"
        for name, cell in cells.items()
    ]
    environment = dict(os.environ)
    engines.tell(environment)
    command = [str(release.python), "-c", CODE, *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LONGEST, env=environment
        )
    except subprocess.TimeoutExpired:
        late = f"its modules did not import within {LONGEST:.0f} seconds"
        return dict.fromkeys(cells, late)
    found = dict(
        line.split(": ", 1) for line in done.stdout.splitlines() if line.split(": ")[0] in cells
    )
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return {name: found.get(name, last) for name in cells}
