"""The table of planted faults uses the launches of the other folders' tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "ptx"))
