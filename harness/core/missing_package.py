"""What a Python lacks that runs a command under check, and the command that installs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# By the name that is imported: what unfix imports in a process that it checks, beside torch,
# Triton and pytest, which the process has or does without. docs/your-suite.md lists them.
CHECKED_PROCESS_PACKAGES = {
    "llvmlite": "llvmlite",
    "msgspec": "msgspec",
    "packaging": "packaging",
    "yaml": "PyYAML",
}


def describe_missing_torch(program: str) -> str:
    """Say how to get torch, for a command whose Python has none; '' if it has, or is no Python."""
    if not Path(program).name.startswith("python"):
        return ""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    if subprocess.run([program, "-c", code], capture_output=True).returncode == 0:
        return ""
    return (
        f"{program} has no torch: `{program} -m pip install torch triton`, or "
        "`unfix exec --release RELEASE …` runs the Python of a release"
    )


def describe_missing_package(error: BaseException) -> str:
    """Describe an import that failed for want of one of our packages; others are as they are."""
    if not isinstance(error, ModuleNotFoundError) or error.name not in CHECKED_PROCESS_PACKAGES:
        return repr(error)
    packages = " ".join(CHECKED_PROCESS_PACKAGES.values())
    return (
        f"{sys.executable} has no {CHECKED_PROCESS_PACKAGES[error.name]}: "
        f"`{sys.executable} -m pip install {packages}`, or `unfix exec --release RELEASE` "
        "runs the Python of a release"
    )
