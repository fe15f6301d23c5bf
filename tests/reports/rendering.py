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
    """Open the page in a tab of its own; assert that it logs nothing and requests only its file."""
    tab = browser.new_page(viewport={"width": width, "height": 900}, **options)
    file.write_text(text)
    show_page(tab, file)
    return tab


def show_page(tab: Page, file: Path) -> None:
    """Show the page in a tab; assert that it logs nothing and requests only its own file."""
    events: list[str] = []
    listeners: dict[str, Callable[[Any], None]] = {
        "console": lambda message: events.append(message.text),
        "pageerror": lambda error: events.append(str(error)),
        "request": lambda request: events.append(request.url),
    }
    for event, listener in listeners.items():
        tab.on(event, listener)  # type: ignore[call-overload]
    tab.goto(file.as_uri())
    assert events == [file.as_uri()]
    tab.evaluate("localStorage.clear()")  # pages of one tab share what they store
    for event, listener in listeners.items():
        tab.remove_listener(event, listener)


def assert_fits(page: Page, *widths: int) -> None:
    """Assert that the page itself never scrolls sideways."""
    for width in widths:
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate(FITS)
