"""`unfix report --index`: one page that leads to all pages and issues of a folder."""

from __future__ import annotations

from pathlib import Path

from harness.cli import kinds, options
from harness.errors import UnfixError


def run(folder: Path) -> int:
    if not folder.is_dir():
        raise UnfixError(f"there is no folder {folder}")
    kinds.find_reports()
    from reports import index

    file = index.write(folder)
    options.say(f"the page: {file}")
    return 0
