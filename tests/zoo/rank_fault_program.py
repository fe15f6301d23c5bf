"""Plants each fault of `rank_faults.yaml` in its row; prints what the ranks gave, as JSON.

Run by a release's Python. Each row is loaded on one rank once, in a fork of this process; a fault
is a toggle that is reverted in there while the row's ranks are forked.
"""

from __future__ import annotations

import importlib
import itertools
import json
import re
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from harness.core import child_process, preloading
from harness.core.located_yaml import SafeYamlFile
from harness.fixes.patch_plan import Direction, ToggleChoice
from harness.fixes.registry.schema import DeviceKind, Symptom, Toggle, ToggleEdit, ToggleVariant
from harness.runs.zoo import claims
from harness.runs.zoo.architecture import read_architectures
from harness.runs.zoo.rank_layout import RankLayout
from harness.runs.zoo.zoo_worker import PRELOADED_MODULES
from harness.sanitizer.check import session
from harness.sanitizer.device import installation
from harness.toggles import ToggleContext

FAULTS = Path(__file__).with_name("rank_faults.yaml")


def read_faults() -> list[dict[str, str]]:
    faults: list[dict[str, str]] = SafeYamlFile(FAULTS).values
    return faults


def main() -> None:
    installation.install_device("H100")
    preloading.pause_gc_for_imports()
    for name in PRELOADED_MODULES:
        importlib.import_module(name)
    claims.preload_modules()
    session.preload_checker()
    preloading.freeze_for_forks()
    chosen = [one for one in read_faults() if not sys.argv[1:] or one["fault"] in sys.argv[1:]]
    for name, faults in itertools.groupby(chosen, lambda fault: fault["row"].split()[0]):
        child_process.fork_process(partial(run_row, name, list(faults))).reap()


def run_row(name: str, faults: list[dict[str, str]]) -> None:
    from fixtures.zoo.compared_ranks import ComparedRanks

    [architecture] = read_architectures([name])
    with tempfile.TemporaryDirectory() as folder:
        row = ComparedRanks(architecture, Path(folder))
        for spread in dict.fromkeys(fault["row"] for fault in faults):
            words = row.compare(read_layout(spread))
            print(json.dumps({"fault": spread, "words": words}), flush=True)
        for fault in faults:
            layout = read_layout(fault["row"])
            with make_fault(fault) as planted:
                words = row.compare(layout)
            print(json.dumps({**fault, "words": words, "reach": planted.reach}), flush=True)


def read_layout(row: str) -> RankLayout:
    """Read the layout of a row: 'qwen3 tp 2 dp 2'."""
    sizes: dict[str, Any] = {kind: int(size) for kind, size in re.findall(r"(\w\w) (\d)", row)}
    return RankLayout(**sizes, enable_dp_attention="dp" in sizes)


def make_fault(fault: dict[str, str]) -> ToggleContext:
    edit = ToggleEdit(fixed=fault["fixed"], buggy=fault["buggy"])
    variant = ToggleVariant(releases=">=0.5.9", target=fault["in"], edits=(edit,))
    words = (
        fault["fault"],
        fault["fault"],
        "engine",
        Symptom.ACCURACY,
        (DeviceKind.CPU,),
        (variant,),
    )
    toggle = Toggle(*words)
    return ToggleContext((ToggleChoice(toggle, Direction.REVERT),))


if __name__ == "__main__":
    main()
