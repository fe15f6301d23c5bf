"""The options of a checked session on this CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.sanitizer.cpu.abi import KINDS_PER_SITE, ReportState
from harness.sanitizer.cpu.arithmetic import Arithmetic
from harness.sanitizer.violations.kinds import CHECK_NAMES, KINDS_OF_CHECKS, RACES

MAX_REPORTS = 64
STORAGE_BOUNDS = "bounds=storage"  # among the checks: `bounds`, with storages for bounds
ALL_KERNELS = "*"


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How launches are computed and what of them is reported."""

    arithmetic: Arithmetic = Arithmetic.SPECIFIED
    checks: tuple[str, ...] = CHECK_NAMES
    max_reports: int = 1  # the launch with the last of them ends in it
    all_configurations: bool = False  # of autotuned kernels; otherwise the first one
    # Of these kernels a pointer may reach the whole storage of its tensor; ALL_KERNELS: of each.
    storage_kernels: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        unknown = [name for name in self.checks if name not in CHECK_NAMES]
        if unknown or not self.checks:
            raise ValueError(
                f"the checks are {', '.join(CHECK_NAMES)}, and not {', '.join(unknown) or 'none'}"
            )
        if not 1 <= self.max_reports <= MAX_REPORTS:
            raise ValueError(f"from 1 to {MAX_REPORTS} reports, and not {self.max_reports}")

    def allow_storage(self, bounds: str, kernels: Sequence[str] = ()) -> CheckOptions:
        """Return these options with what `@pytest.mark.sanitize(bounds="storage")` asks for."""
        if bounds != "storage":
            raise ValueError(f"bounds can be 'storage', and not '{bounds}'")
        return replace(self, storage_kernels=self.storage_kernels | set(kernels or (ALL_KERNELS,)))

    def allows_storage(self, kernel: str) -> bool:
        return not self.storage_kernels.isdisjoint((kernel, ALL_KERNELS))

    def make_report_states(self, site_count: int, ignores_races: bool) -> Any:
        """Make the table that says for each site and kind whether to report it."""
        states = np.zeros((site_count, KINDS_PER_SITE), dtype=np.uint8)
        off = [
            kind
            for name, kinds in KINDS_OF_CHECKS.items()
            for kind in kinds
            if name not in self.checks
        ]
        if ignores_races:
            off += RACES.values()
        if off:
            states[:, off] = ReportState.OFF
        return states


DEFAULT_OPTIONS = CheckOptions()
