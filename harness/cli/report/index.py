"""`unfix report --index`: one page that leads to all pages and issues of a folder."""

from __future__ import annotations

from pathlib import Path

from harness.cli import options, run_kinds
from harness.core.errors import UnfixError


def write_index(folder: Path) -> int:
    if not folder.is_dir():
        raise UnfixError(f"there is no folder {folder}")
    run_kinds.add_reports_to_path()
    from reports import index

    file = index.write_index(folder)
    options.report_status(f"the page: {file}")
    return 0
