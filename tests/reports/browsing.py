"""A page opened in a real browser, and all that it says or asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def opened(browser: Browser, file: Path, **options: Any) -> tuple[Page, list[str]]:
    page = browser.new_page(viewport={"width": 1280, "height": 900}, **options)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url))
    page.goto(file.as_uri())
    return page, said
