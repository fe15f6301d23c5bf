"""What a process asked of the virtual device: stand-ins that ran, branches, and probes.

A record is data (`as_dict`): a run on a real GPU takes the same branches, and the comparison of the
two says where the virtual device leads SGLang elsewhere.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from harness.device.refusals import REFUSALS, find_caller


class DeviceRecord:
    def __init__(self) -> None:
        self.stand_ins: Counter[str] = Counter()  # calls, by package and name
        self.branches: Counter[tuple[str, str]] = Counter()  # a question, and the line that asks
        self.imported_names: Counter[str] = Counter()  # names of packages without a stand-in

    def count_branch(self, question: str) -> None:
        self.branches[question, find_caller()] += 1

    def as_dict(self) -> dict[str, Any]:
        return {
            "stand_ins": dict(self.stand_ins),
            "branches": [[*key, count] for key, count in sorted(self.branches.items())],
            "imported_without_stand_in": dict(self.imported_names),
            "refusals": dict(REFUSALS),
        }


RECORD = DeviceRecord()
