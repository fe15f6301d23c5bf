"""A page that leads to all other pages of a folder, and to the issues beside them."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from reports.shared import one_file
from reports.shared.texts import line as short

STYLES = ("shared/page.css", "shared/runs.css", "shared/bars.css")
HEAD = 4000  # letters in which a page has its title


@dataclass(frozen=True)
class Entry:
    place: str
    title: str
    red: bool


def write(folder: Path) -> Path:
    file = folder / "index.html"
    found = sorted(folder.rglob("*.html")) + sorted(folder.rglob("*.md"))
    entries = [_entry(each, folder) for each in found if each != file]
    values = {
        "pages": [one for one in entries if not one.place.endswith(".md")],
        "issues": [one for one in entries if one.place.endswith(".md")],
        "red": any(one.red for one in entries),
    }
    file.write_text(one_file.rendered("shared/index.html.j2", values, styles=STYLES), "utf-8")
    return file


def _entry(file: Path, folder: Path) -> Entry:
    with file.open(encoding="utf-8", errors="replace") as opened:
        head = opened.read(HEAD)
    place = file.relative_to(folder).as_posix()
    if file.suffix == ".md":
        return Entry(quote(place), short(head.partition("\n")[0].lstrip("# ") or place, 200), True)
    found = re.search(r"<title>(.*?)</title>", head, re.DOTALL)
    title = html.unescape(found[1]).strip() if found else ""
    return Entry(quote(place), short(title or place, 200), title.startswith("RED"))
