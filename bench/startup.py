"""What the commands cost, and what a process pays that asks for no toggle.

    python -m bench.startup [--record FILE]      (in unfix's own environment, one release installed)

The price of the start line is measured in two release environments that differ in that line
alone, by turns; `list` and `drift` beside a Python that does nothing.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.recording import make_parser, record_result, time_call
from harness.core import paths
from harness.releases import managed_releases

ROUNDS = 40


def measure_seconds(*words: str) -> float:
    options = {"capture_output": True, "check": False, "cwd": paths.project_folder()}
    return time_call(lambda: subprocess.run(words, **options))


def without_start_line(release: managed_releases.Release, folder: Path) -> Path:
    """Copy a release's environment, without the line that starts toggles."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    assert release.site_packages is not None
    lines = (release.site_packages / "unfix.pth").read_text().splitlines()[:2]
    (site / "unfix.pth").write_text("\n".join(lines) + "\n")
    return folder / "bin" / "python"


def main() -> int:
    arguments = make_parser(__doc__).parse_args()
    release = managed_releases.find_default_release()
    assert release is not None
    folder = Path(tempfile.mkdtemp())
    bare = without_start_line(release, folder / "bare")
    commands = {
        "with": (str(release.python), "-c", "pass"),
        "without": (str(bare), "-c", "pass"),
        "nothing": (sys.executable, "-c", "pass"),
        "list": (sys.executable, "-m", "harness", "list"),
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, words in commands.items():
            times[name].append(measure_seconds(*words))
    shutil.rmtree(folder)
    median = {name: statistics.median(found) for name, found in times.items()}
    drift = measure_seconds(sys.executable, "-m", "harness", "drift")
    result: dict[str, Any] = {
        "rounds": ROUNDS,
        "start_line_ms": (median["with"] - median["without"]) * 1000,
        "start_line_ratio": median["with"] / median["without"],
        "list_s": median["list"],
        "list_over_empty_python": median["list"] / median["nothing"],
        "drift_eleven_releases_s": drift,
    }
    record_result(result, arguments.record, python=str(release.python))
    return int(result["start_line_ms"] >= 2 or median["list"] >= 0.5 or drift >= 20)


if __name__ == "__main__":
    sys.exit(main())
