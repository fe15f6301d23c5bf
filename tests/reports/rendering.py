"""A report as text, and a page in a real browser with its messages and requests."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

if TYPE_CHECKING:
    from playwright.sync_api import Page


def to_text(print_run: Callable[[Any, Console], None], run: Any, width: int = 160) -> str:
    """Return the output on a terminal, without colours."""
    output = io.StringIO()
    print_run(run, Console(file=output, width=width, color_system=None))
    assert "\x1b" not in output.getvalue()
    assert "\x00" not in output.getvalue()
    return output.getvalue()


@contextmanager
def record_events(tab: Page) -> Iterator[list[str]]:
    """Record what pages of a tab log, and the addresses that they request."""
    events: list[str] = []
    listeners: dict[str, Callable[[Any], None]] = {
        "console": lambda message: events.append(message.text),
        "pageerror": lambda error: events.append(str(error)),
        "request": lambda request: events.append(request.url),
    }
    for event, listener in listeners.items():
        tab.on(event, listener)  # type: ignore[call-overload]
    try:
        yield events
    finally:
        for event, listener in listeners.items():
            tab.remove_listener(event, listener)


def show_page(
    tab: Page,
    text: str,
    file: Path,
    *,
    width: int = 1280,
    scheme: Literal["light", "dark"] = "light",
) -> None:
    """Show a page; assert that it logs nothing and requests only its own file."""
    file.write_text(text)
    tab.set_viewport_size({"width": width, "height": 900})
    tab.emulate_media(color_scheme=scheme)
    with record_events(tab) as events:
        tab.goto(file.as_uri())
        assert events == [file.as_uri()]
    tab.evaluate("localStorage.clear()")  # pages of one tab share what they store
