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
from reports.shared.page_facts import PageFacts, read_page_facts

NO_FACTS = PageFacts()
STYLES = ("shared/runs.css", "shared/bars.css")
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
_TESTED = re.compile(r'<div class="where" title="([^"]*)">')


@dataclass(frozen=True)
class PageLink:
    """A row of the index: a page, and what it says of its run."""

    path: str
    title: str
    tested: str = ""  # releases, toggles, device
    run: str = ""  # the file's name, which has the run's id; '' for a page that names no run
    facts: PageFacts = NO_FACTS


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
    pages = [_read_page(each, folder) for each in folder.glob(f"{pattern}.html") if each != file]
    pages.sort(key=lambda link: (link.facts.started, link.path), reverse=True)
    issues = [_read_issue(each, folder) for each in sorted(folder.glob(f"{pattern}.md"))]
    red_count = sum(link.facts.is_red for link in pages)
    values = {
        "pages": pages,
        "issues": issues,
        "red_count": red_count,
        "green_count": sum(bool(link.facts.verdict) for link in pages) - red_count,
    }
    return html_file.render_template(
        "shared/index.html.j2", values, [folder.name], [machine.describe_commit()], styles=STYLES
    )


def _read_page(file: Path, folder: Path) -> PageLink:
    text = file.read_text(encoding="utf-8", errors="replace")
    title, tested = (
        html.unescape(m[1]) if (m := p.search(text)) else "" for p in (_TITLE, _TESTED)
    )
    facts = read_page_facts(text.partition("</head>")[0]) or NO_FACTS
    path = file.relative_to(folder).as_posix()
    run = file.stem if facts.started else ""
    return PageLink(quote(path), to_single_line(title.strip() or path, 200), tested, run, facts)


def _read_issue(file: Path, folder: Path) -> PageLink:
    """Return the link of a report of a new failure: Markdown, its title in the first line."""
    with file.open(encoding="utf-8", errors="replace") as opened:
        title = opened.readline().strip().lstrip("# ")
    path = file.relative_to(folder).as_posix()
    return PageLink(quote(path), to_single_line(title or path, 200))
