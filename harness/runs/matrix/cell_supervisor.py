"""A cell's supervisor, one process further from whoever wants the cell.

Started as `python -m harness.runs.matrix.cell_supervisor SPEC PARENT`. A worker of Ray that ends kills its
children first, so its child cannot be the one that has to tidy up. This process is that child, and
only waits, for as long as its own parent is there; the one below it supervises, and ends all that
the cell started as soon as this one is gone. The parent is told, not asked for: it may be gone
before this process could ask.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path
from types import FrameType

from harness.workers import command_supervisor

POLL_SECONDS = 0.1  # seconds between two looks at whether anybody still wants the cell


def main(request_file: Path, parent_pid: int) -> None:
    here = os.getpid()
    below = os.fork()
    if not below:
        command_supervisor.supervise_command(request_file, here)
        return

    def pass_on(number: int, frame: FrameType | None) -> None:
        os.kill(below, number)

    signal.signal(signal.SIGTERM, pass_on)
    handle = os.pidfd_open(below)
    while not select.select([handle], [], [], POLL_SECONDS)[0]:
        if os.getppid() != parent_pid:
            sys.exit(1)  # the one below looks at this as this looks at its own
    code = os.waitstatus_to_exitcode(os.waitpid(below, 0)[1])
    if code < 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
