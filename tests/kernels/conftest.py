"""Runs kernel tests where torch and Triton are: in the shared base of the managed releases."""

from __future__ import annotations

import sys
from pathlib import Path

TOY = Path(__file__).parent.parent / "toy"
sys.path.insert(0, str(TOY))
FOLDER = (TOY / "toggles",)
