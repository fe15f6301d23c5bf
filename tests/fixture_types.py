"""Short names for the types of pytest's fixtures, which half of all signatures use."""

from __future__ import annotations

import pytest

Output = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
