"""A report as text, and a page in a real browser with its messages and requests."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FITS = "document.documentElement.scrollWidth <= window.innerWidth"


def to_text(print_run: Callable[[Any, Console], None], run: Any, width: int = 160) -> str:
    """Return the output on a terminal, without colours."""
    output = io.StringIO()
    print_run(run, Console(file=output, width=width, color_system=None))
    assert "\x1b" not in output.getvalue()
    assert "\x00" not in output.getvalue()
    return output.getvalue()


def open_page(
    browser: Browser, text: str, file: Path, *, width: int = 1280, **options: Any
) -> Page:
    """Open the page; assert that it logs nothing and requests only its own file."""
    file.write_text(text)
    page = browser.new_page(viewport={"width": width, "height": 900}, **options)
    events: list[str] = []
    page.on("console", lambda message: events.append(message.text))
    page.on("pageerror", lambda error: events.append(str(error)))
    page.on("request", lambda request: events.append(request.url))
    page.goto(file.as_uri())
    assert events == [file.as_uri()]
    return page


def assert_fits(page: Page, *widths: int) -> None:
    """Assert that the page itself never scrolls sideways."""
    for width in widths:
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate(FITS)
