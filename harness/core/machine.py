"""Facts about this machine, for recorded results."""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import __version__
from harness.core import paths
from harness.core.errors import NotReadyError

RECORDED_PACKAGES = (
    "sglang",
    "torch",
    "triton",
    "transformers",
    "flashinfer-python",
    "sglang-kernel",
)
# An empty entry is the working directory, which is no part of an environment.
LIST_PACKAGES_SCRIPT = """
import glob, importlib.metadata, json, os, platform, sys
folders = [entry for entry in sys.path if entry]
files = [file for entry in folders for file in glob.glob(entry + "/*-info/METADATA")]
times = {one: os.stat(one).st_ctime_ns if os.path.exists(one) else 0 for one in folders + files}
found = importlib.metadata.distributions(path=folders)
packages = [(one.metadata["Name"], one.version) for one in found]
print(json.dumps([times, platform.python_version(), sys.version, packages]))
"""


@dataclass(frozen=True)
class _InstalledPackages:
    """An environment's packages, and when what says so changed last.

    An installation or a removal changes a folder of packages, an edit a package's METADATA.
    """

    change_times: dict[str, int]  # by path, from before the packages were listed
    python_version: str
    python_description: str
    versions: list[tuple[str, str]]  # by name; the first of one name is the one that is imported

    def is_current(self) -> bool:
        return all(
            (os.stat(path).st_ctime_ns if os.path.exists(path) else 0) == changed
            for path, changed in self.change_times.items()
        )


_packages: dict[tuple[str, str], _InstalledPackages] = {}  # by Python and PYTHONPATH


def list_installed_packages(python: Path) -> str:
    """List every package of an environment with its version: Triton, Hypothesis, pytest, ..."""
    packages = _read_packages(str(python))
    lines = sorted({f"{name} {version}" for name, version in packages.versions})
    return "\n".join([packages.python_description, *lines, ""])


def _read_packages(python: str) -> _InstalledPackages:
    """Read an environment's packages anew if it has changed since this process read them."""
    key = python, os.environ.get("PYTHONPATH", "")
    known = _packages.get(key)
    if known is None or not known.is_current():
        command = [python, "-c", LIST_PACKAGES_SCRIPT]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode or not done.stdout:
            raise NotReadyError(f"{python} cannot list its packages: {done.stderr.strip()}")
        times, version, description, packages = json.loads(done.stdout)
        versions = [(name, number) for name, number in packages]
        known = _packages[key] = _InstalledPackages(times, version, description, versions)
    return known


def collect_versions(*further_packages: str) -> dict[str, str]:
    """Collect the versions of Python and of the installed packages that a record names."""
    versions = {"python": platform.python_version()}
    for name in (*RECORDED_PACKAGES, *further_packages):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def describe_gpus() -> str:
    """Describe the GPUs by name and driver; '' where there is none."""
    if shutil.which("nvidia-smi") is None:
        return ""
    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(words, capture_output=True, text=True)
    return done.stdout.strip().replace("\n", "; ")


def require_device(device: str) -> None:
    """Raise NotReadyError if the machine does not have the device."""
    if device == "cuda" and not describe_gpus():
        raise NotReadyError("this machine has no CUDA device: --device cpu")


@functools.cache
def describe_commit() -> str:
    """Name the commit of unfix, with ', changed' if files differ from it; else its version.

    A commit that no remote has may be rebased before others see it, so the newest one that a remote
    has is named, too: 'a1b2c3d4e5f6, 2 commits after 0f1e2d3c4b5a'. That is as it was at the first
    call: a process runs the code that it has imported.
    """
    root = paths.project_folder()
    return (_describe_head(root) if (root / ".git").exists() else "") or __version__


def describe_sources(folder: str | Path) -> str:
    """Name a folder of SGLang's sources, with its commit, and ', changed', if git tracks it."""
    commit = _describe_head(folder, "sglang/__init__.py")
    return f"{folder} at {commit}" if commit else str(folder)


def _describe_head(folder: str | Path, tracked: str = ".") -> str:
    """Return the commit, with ', changed' if files differ; '' where git does not track a file."""
    if shutil.which("git") is None:
        return ""

    def run_git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True)

    revision = run_git("rev-parse", "--short=12", "HEAD")
    if revision.returncode or run_git("ls-files", "--error-unmatch", tracked).returncode:
        return ""
    changed = run_git("status", "--porcelain", ".").stdout.strip()  # a new guard is a change, too
    words = [revision.stdout.strip()]
    unpushed_commits = run_git(
        "rev-list", "--first-parent", "HEAD", "--not", "--remotes"
    ).stdout.split()
    count = len(unpushed_commits)
    public = run_git("rev-parse", "--short=12", f"HEAD~{count}")
    if count and not public.returncode:  # there is none where no remote is known
        words.append(f"{count} commit{'s' * (count > 1)} after {public.stdout.strip()}")
    return ", ".join([*words, *(["changed"] if changed else [])])


def describe_machine(python: str = sys.executable) -> dict[str, str]:
    """Return the facts as flat text values, for a record."""
    facts = collect_machine_facts(python)
    versions = dict(facts.pop("versions"))
    return {name: str(value) for name, value in (facts | versions).items()}


def collect_machine_facts(python: str = sys.executable) -> dict[str, Any]:
    """Date, hardware, and the versions of the recorded packages under a Python interpreter."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "gpu": describe_gpus(),
        "unfix": describe_commit(),
        "versions": _read_versions(python),
    }


def _read_versions(python: str) -> dict[str, str]:
    try:
        packages = _read_packages(python)
    except NotReadyError:
        return {}
    found = {_normalize_name(name): version for name, version in reversed(packages.versions)}
    recorded = {name: found[name] for name in RECORDED_PACKAGES if name in found}
    return {"python": packages.python_version, **recorded}


def _normalize_name(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package or "").lower()
