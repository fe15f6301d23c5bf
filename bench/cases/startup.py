"""What the commands cost, and what a process pays that asks for no toggle.

    .venv/bin/python -m bench.run startup        (with one release installed)

The price of the start line is measured in two release environments that differ in that line
alone, by turns; `list` and `drift` beside a Python that does nothing.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.measuring import Result, time_call
from harness.core import paths
from harness.releases import managed_releases

ROUNDS = 40
LIMITS = {"start_line_ms": 2, "list_s": 0.5, "drift_eleven_releases_s": 20}


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


def measure_case(options: argparse.Namespace) -> Iterator[Result]:
    release = managed_releases.find_default_release()
    assert release is not None
    with tempfile.TemporaryDirectory() as folder:
        commands = {
            "with": (str(release.python), "-c", "pass"),
            "without": (str(without_start_line(release, Path(folder) / "bare")), "-c", "pass"),
            "nothing": (sys.executable, "-c", "pass"),
            "list": (sys.executable, "-m", "harness", "list"),
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(ROUNDS):
            for name, words in commands.items():
                times[name].append(measure_seconds(*words))
    median = {name: statistics.median(found) for name, found in times.items()}
    result = {
        "rounds": ROUNDS,
        "start_line_ms": (median["with"] - median["without"]) * 1000,
        "start_line_ratio": median["with"] / median["without"],
        "list_s": median["list"],
        "list_over_empty_python": median["list"] / median["nothing"],
        "drift_eleven_releases_s": measure_seconds(sys.executable, "-m", "harness", "drift"),
    }
    is_good = all(result[name] < limit for name, limit in LIMITS.items())
    yield Result(result, is_good, python=str(release.python))
