"""Calls in a dry run, which stays in its process: each is a fork."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.core import child_process
from harness.sanitizer.device import dry_run
from harness.sanitizer.device.memory import LEDGER


def call_in_dry_run(function: Callable[[], Any]) -> Any:
    """Call a function in a fork whose card has any memory that is asked for."""

    def call() -> Any:
        dry_run.enable_dry_run()
        LEDGER.is_limited = False
        return function()

    return child_process.call_in_fork(call, cpu_seconds=60)
