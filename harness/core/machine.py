"""Facts about this machine, for recorded results."""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
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
VERSIONS_SCRIPT = f"""
import importlib.metadata, json, platform
found = {{"python": platform.python_version()}}
for name in {RECORDED_PACKAGES!r}:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
LIST_PACKAGES_SCRIPT = """
import importlib.metadata, sys
packages = {f"{p.metadata['Name']} {p.version}" for p in importlib.metadata.distributions()}
print(sys.version, *sorted(packages), sep="\\n")
"""


@functools.cache
def list_installed_packages(python: Path) -> str:
    """List every package of an environment with its version: Triton, Hypothesis, pytest, ..."""
    done = subprocess.run([python, "-c", LIST_PACKAGES_SCRIPT], capture_output=True, text=True)
    if done.returncode:
        raise NotReadyError(f"{python} cannot list its packages: {done.stderr.strip()}")
    return done.stdout


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
    own = run_git("rev-list", "--first-parent", "HEAD", "--not", "--remotes").stdout.split()
    public = run_git("rev-parse", "--short=12", f"HEAD~{len(own)}")
    if own and not public.returncode:  # there is none where no remote is known
        words.append(f"{len(own)} commit{'s' * (len(own) > 1)} after {public.stdout.strip()}")
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
        "versions": dict(_read_versions(python)),
    }


@functools.cache
def _read_versions(python: str) -> dict[str, str]:
    done = subprocess.run([python, "-c", VERSIONS_SCRIPT], capture_output=True, text=True)
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {}
