"""Stand-ins for operators of CUDA binaries: one module an operator or family, by name.

A module here registers functions, each with the names it stands in for and the specification it
follows; what several take of torch operations lies in `formulas`. `fixtures/stand_ins` draws their
calls, and compares them with their judges there. See docs/explanation/virtual-device.md.
"""

from __future__ import annotations

import importlib
import pkgutil

from harness.sanitizer.device.stand_ins import STAND_INS, StandIn


def load_stand_ins() -> dict[str, StandIn]:
    """Import every module of this folder, which fills the registry."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return STAND_INS
