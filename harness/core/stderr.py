"""Lines that a process prints about itself, beside what its program prints."""

from __future__ import annotations

import sys


def report_to_stderr(message: str) -> None:
    """Print a line on stderr; a closed stderr does not end the process."""
    try:
        print(f"unfix: {message}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return
