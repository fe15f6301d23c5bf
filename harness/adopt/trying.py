"""A toggle tried in a real release: whether it can be put in live, and if not, why."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from harness.adopt.course import Course
from harness.adopt.following import Known
from harness.matching.states import State
from harness.releases.managed import Release

LONGEST = 120.0  # seconds; importing SGLang takes ten
CODE = """
import sys, warnings
warnings.simplefilter("ignore")
from harness import toggles
from harness.errors import UnfixError
try:
    with getattr(toggles, sys.argv[2])(sys.argv[1]):
        pass
    print("live")
except UnfixError as error:
    print(f"at import alone: {error}")
"""


def live(name: str, course: Course, releases: Sequence[Release]) -> str:
    """What comes of it on the newest installed release that has the code, in words."""
    held = {str(cell.tree.version): cell for cell in course.held}
    here = [r for r in reversed(releases) if r.installed and r.name in held]
    if not here:
        return "not tried: no release that has the code is installed (`unfix releases add VERSION`)"
    return f"on SGLang {here[0].name}: {_asked(here[0], name, held[here[0].name])}"


def _asked(release: Release, name: str, cell: Known) -> str:
    verb = "reverted" if cell.state is State.FIXED else "enabled"
    try:
        done = subprocess.run(
            [release.python, "-c", CODE, name, verb],
            capture_output=True,
            text=True,
            timeout=LONGEST,
        )
    except subprocess.TimeoutExpired:
        return f"its modules did not import within {LONGEST:.0f} seconds"
    said = [line for line in done.stdout.splitlines() if line.startswith(("live", "at import"))]
    return said[-1] if said else (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
