"""A page with links to all other pages of a folder, and to the issues beside them."""

from __future__ import annotations

import fcntl
import html
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from harness.core import machine
from harness.core.files import write_atomically
from reports.shared import html_file
from reports.shared.formatting import to_single_line
from reports.shared.html_file import PageHead

STYLES = ("shared/runs.css", "shared/bars.css")
TITLE_SEARCH_LENGTH = 4000  # letters that are searched for a page's title


@dataclass(frozen=True)
class PageLink:
    path: str
    title: str
    is_red: bool


def write_index(folder: Path, pattern: str = "**/*") -> Path:
    """Write the index of what the folder holds now; runs that end at once take turns."""
    file = folder / "index.html"
    turn = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        write_atomically(file, _render_index(folder, pattern, file))
    finally:
        os.close(turn)  # which ends the lock
    return file


def _render_index(folder: Path, pattern: str, file: Path) -> str:
    files = sorted(folder.glob(f"{pattern}.html")) + sorted(folder.glob(f"{pattern}.md"))
    entries = [_make_link(each, folder) for each in files if each != file]
    values = {
        "pages": [entry for entry in entries if not entry.path.endswith(".md")],
        "issues": [entry for entry in entries if entry.path.endswith(".md")],
        "red": any(entry.is_red for entry in entries),
    }
    return html_file.render_template(
        "shared/index.html.j2",
        values,
        head=PageHead.make([folder.name], [machine.describe_commit()]),
        styles=STYLES,
    )


def _make_link(file: Path, folder: Path) -> PageLink:
    with file.open(encoding="utf-8", errors="replace") as opened:
        head = opened.read(TITLE_SEARCH_LENGTH)
    path = file.relative_to(folder).as_posix()
    if file.suffix == ".md":
        title = head.partition("\n")[0].lstrip("# ")
    else:
        match = re.search(r"<title>(.*?)</title>", head, re.DOTALL)
        title = html.unescape(match[1]).strip() if match else ""
    is_red = file.suffix == ".md" or title.startswith("RED")
    return PageLink(quote(path), to_single_line(title or path, 200), is_red)
