"""What a bench measured, with the machine and the call: printed, and kept if a file is named."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from harness import machine
from harness.cli import pages


def record(
    result: dict[str, Any], file: Path | None, *, python: str = sys.executable, say: bool = True
) -> None:
    whole = {"machine": machine.facts(python), "command": ["python", *sys.argv], **result}
    text = json.dumps(whole, indent=1, ensure_ascii=False)
    if say:
        print(text)
    if file is not None:
        pages.save(file, pages.without_places(text) + "\n")
