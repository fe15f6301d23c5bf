"""What a page says of its run, for the index: in its head, where a copy of the page keeps it."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass

_NAME = "unfix-run"
_ELEMENT = re.compile(rf'<meta name="{_NAME}" content="([^"]*)">')


@dataclass(frozen=True)
class PageFacts:
    """The verdict, date and command of the run that a page shows."""

    verdict: str = ""  # in the words of the kind of run; empty for a page that judges nothing
    is_red: bool = False
    started: str = ""  # ISO 8601
    command: str = ""

    @classmethod
    def make(cls, verdict: str, is_red: bool, started: str, words: Sequence[str]) -> PageFacts:
        return cls(verdict, is_red, started, shlex.join(words))

    def add_to_page(self, page: str) -> str:
        """Return a page with these facts in its head."""
        text = json.dumps(asdict(self))
        return page.replace(
            "<title>", f'<meta name="{_NAME}" content="{html.escape(text)}">\n<title>', 1
        )


def read_page_facts(page: str) -> PageFacts | None:
    """Read the facts from the beginning of a page; None for one that has none."""
    match = _ELEMENT.search(page)
    return PageFacts(**json.loads(html.unescape(match[1]))) if match else None
