"""What a Python lacks that runs a command under check, and the command that installs it."""

from __future__ import annotations

import sys

# By the name that is imported: what unfix imports in a process that it checks, beside torch,
# Triton and pytest, which the process has or does without. docs/your-suite.md lists them.
CHECKED_PROCESS_PACKAGES = {
    "llvmlite": "llvmlite",
    "msgspec": "msgspec",
    "packaging": "packaging",
    "yaml": "PyYAML",
}


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
